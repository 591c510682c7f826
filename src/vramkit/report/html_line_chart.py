"""A line chart as HTML: lines in SVG that stretches with the page, texts in elements that do not.

Places are shares of the drawing. Names stand at the ends of their lines where the page is wide, and
in a legend where it is narrow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise

from vramkit.report.axis import Scale
from vramkit.report.blocks import Level, LineChart, Series
from vramkit.report.chart_scales import Axes, axes_of
from vramkit.report.chart_table import line_table
from vramkit.report.html_chart_parts import level_key, line_key, odd_ticks, series_class
from vramkit.report.html_table import hidden_table_html
from vramkit.report.html_text import caption, inline
from vramkit.report.thinning import Point, thinned
from vramkit.report.units import value_text

COLUMNS = 700  # points are thinned to as many as a wide page shows
MARKED = 40  # points of a series that have a mark each; a denser one has SPARSE marks on it
SPARSE = 5
NAMED = 12  # more lines than these are named in a legend alone
BETWEEN_NAMES = 0.078  # of the drawing's height (charts.css): a name needs this much
X_TICKS, Y_TICKS = 7, 5  # intervals of an axis, at most


def line_chart_html(block: LineChart) -> str:
    axes = axes_of(block, X_TICKS, Y_TICKS)
    if axes is None:
        return (
            f'<figure class="chart"><figcaption>{inline(block.title)}</figcaption>'
            f"<p>No values.</p>{caption(block.caption)}</figure>"
        )
    named = len(block.series) + len(block.levels) <= NAMED
    legend = "".join(line_key(index, each.name) for index, each in enumerate(block.series))
    legend += "".join(level_key(level.name, level.tone) for level in block.levels)
    lines = "".join(_line(series, index, axes) for index, series in enumerate(block.series))
    marks = "".join(_marks(block, index, axes) for index in range(len(block.series)))
    levels = "".join(_level(level, axes) for level in block.levels)
    return (
        f'<figure class="chart"><figcaption>{inline(block.title)}'
        f'<span class="legend{" narrow" if named else ""}">{legend}</span></figcaption>'
        f'<div class="linechart" role="img" aria-label="{escape(_spoken(block))}">'
        f'<span class="ytitle">{escape(block.y.title)}</span>{_y_texts(axes.y)}'
        f'<div class="plot">{_grid(axes)}'
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">'
        f"{lines}</svg>{levels}{marks}</div>"
        f"{_names(block, axes) if named else ''}"
        f'<span class="xtitle">{escape(block.x.title)}</span></div>'
        f"{caption(block.caption)}{hidden_table_html(line_table(block))}</figure>"
    )


def _level(level: Level, axes: Axes) -> str:
    if not axes.y.shows(level.value):
        return ""
    top = _percent(1 - axes.y.share(level.value))
    return f'<span class="level {level.tone}" style="top:{top}"></span>'


def _spoken(block: LineChart) -> str:
    lines = []
    for series in block.series:
        ys = [y for _, y in series.points if y is not None]
        if ys:
            low, high = value_text(min(ys), block.y.unit), value_text(max(ys), block.y.unit)
            lines.append(f"{series.name} from {low} to {high}")
    return f"{block.title}: {block.y.title} over {block.x.title}; {', '.join(lines)}"


def _percent(share: float) -> str:
    return f"{100 * share:.3f}%"


def _grid(axes: Axes) -> str:
    across = "".join(
        f'<span class="across{" zero" if tick.value == 0 else ""}" '
        f'style="top:{_percent(1 - axes.y.share(tick.value))}"></span>'
        for tick in axes.y.ticks
    )
    along = []
    for tick, odd in odd_ticks(axes.x):
        share = axes.x.share(tick.value)
        side = " last" if share > 0.96 else ""
        along.append(
            f'<span class="along{side}{odd}" style="left:{_percent(share)}">'
            f"<i>{escape(tick.text)}</i></span>"
        )
    return across + "".join(along)


def _y_texts(scale: Scale) -> str:
    texts = "".join(
        f'<i style="top:{_percent(1 - scale.share(tick.value))}">{escape(tick.text)}</i>'
        for tick in scale.ticks
    )
    return f'<div class="yticks">{texts}</div>'


def _runs(series: Series, axes: Axes, ys: Sequence[float | None]) -> Iterator[list[Point]]:
    """Places of neighbouring points, cut at gaps and thinned out."""
    run: list[Point] = []
    for (x, known), y in zip(series.points, ys, strict=True):
        if known is None or y is None or not axes.shows(x, y):
            if run:
                yield thinned(run, COLUMNS)
            run = []
        else:
            run.append(axes.place(x, y))
    if run:
        yield thinned(run, COLUMNS)


def _path(points: Iterable[Point]) -> str:
    return "L".join(f"{round(1000 * x, 1):g} {round(1000 * y, 1):g}" for x, y in points)


def _corners(points: list[Point], *, step: bool) -> list[Point]:
    """With a step, a line holds its height until the next point."""
    if len(points) == 1:  # a line of no length, of which its round ends show
        return points * 2
    if not step:
        return points
    held = [(after[0], before[1]) for before, after in pairwise(points)]
    return [corner for pair in zip(points, [*held, points[-1]], strict=True) for corner in pair]


def _line(series: Series, index: int, axes: Axes) -> str:
    look = series_class(index)
    drawn = [
        f"M{_path(_corners(run, step=series.step))}"
        for run in _runs(series, axes, [y for _, y in series.points])
    ]
    band = ""
    if series.band:
        edges = (
            [_corners(run, step=series.step) for run in _runs(series, axes, ends)]
            for ends in zip(*((_shown(y, axes) for y in pair) for pair in series.band), strict=True)
        )
        areas = "".join(
            f"M{_path([*high, *reversed(low)])}Z" for low, high in zip(*edges, strict=True)
        )
        band = f'<path class="band {look}" d="{areas}"/>'
    return f'{band}<path class="stroke {look}" d="{"".join(drawn)}"/>'


def _shown(end: float, axes: Axes) -> float:
    """A band that reaches down to zero ends at the foot of a logarithmic axis."""
    return end if axes.y.shows(end) else axes.y.low


def _marks(block: LineChart, index: int, axes: Axes) -> str:
    series = block.series[index]
    shown = [
        (x, y, at) for at, (x, y) in enumerate(series.points) if y is not None and axes.shows(x, y)
    ]
    if len(shown) > MARKED:
        # Each series at places of its own.
        shift = (index + 1) / (len(block.series) + 1)
        shares = [axes.x.share(x) for x, _, _ in shown]
        wanted = [bisect_left(shares, (turn + shift) / SPARSE) for turn in range(SPARSE)]
        shown = [shown[at] for at in sorted({each for each in wanted if each < len(shown)})]
    marks = []
    for x, y, at in shown:
        left, top = axes.place(x, y)
        text = f"{series.name}: {value_text(y, block.y.unit)}"
        if series.band and series.band[at][0] != series.band[at][1]:
            low, high = (value_text(end, block.y.unit) for end in series.band[at])
            text += f" ({low} to {high})"
        tip = escape(f"{text}; {block.x.title} {value_text(x, block.x.unit)}")
        marks.append(
            f'<i class="dot {series_class(index)}" '
            f'style="left:{_percent(left)};top:{_percent(top)}" title="{tip}"></i>'
        )
    return "".join(marks)


def _names(block: LineChart, axes: Axes) -> str:
    """At the height where each line ends, moved apart where they would overlap."""
    entries: list[tuple[float, str, str]] = []
    for index, series in enumerate(block.series):
        shown = [(x, y) for x, y in series.points if y is not None and axes.shows(x, y)]
        if shown:
            top = axes.place(*shown[-1])[1]
            entries.append((top, series.name, line_key(index, series.name)))
    entries += [
        (1 - axes.y.share(level.value), level.name, level_key(level.name, level.tone))
        for level in block.levels
        if axes.y.shows(level.value)
    ]
    entries.sort(key=lambda entry: entry[0])
    tops = apart([top for top, _, _ in entries], BETWEEN_NAMES)
    names = "".join(
        f'<div style="top:{_percent(top)}" title="{escape(name)}">{key}</div>'
        for top, (_, name, key) in zip(tops, entries, strict=True)
    )
    return f'<div class="names">{names}</div>'


def apart(places: Sequence[float], least: float) -> list[float]:
    """Ascending places, moved to be `least` apart and, if there is room, within 0 to 1."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + least) if moved else place)
    limit = 1.0
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], limit)
        limit = moved[index] - least
    return moved
