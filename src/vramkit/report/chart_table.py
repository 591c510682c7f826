"""What a chart shows, as a table: for readers who do not see it, and for its exact figures."""

from __future__ import annotations

from vramkit.report.blocks import BarChart, LineChart, Series, Table, ValueBar
from vramkit.report.units import Unit, value_text

ROWS = 40  # more points than these are summed up
NOTHING = "–"  # noqa: RUF001


def bar_text(bar: ValueBar, unit: Unit) -> str:
    """The value, or why there is none."""
    return bar.why or "not measured" if bar.value is None else value_text(bar.value, unit)


def spread_text(bar: ValueBar, unit: Unit) -> str:
    if bar.low is None or bar.high is None or bar.low == bar.high:
        return ""
    return f"{value_text(bar.low, unit)} to {value_text(bar.high, unit)}"


def bar_table(block: BarChart) -> Table:
    """Columns that would be empty are left out."""
    rows = [
        [
            bar.group,
            bar.label,
            bar.series,
            bar_text(bar, block.unit),
            spread_text(bar, block.unit),
            bar.why if bar.value is not None else "",
        ]
        for bar in block.bars
    ]
    columns = ["", block.first, "", "value", "spread", "note"]
    kept = [index for index in range(len(columns)) if index == 1 or any(row[index] for row in rows)]
    return Table(
        [columns[index] for index in kept],
        [[row[index] for index in kept] for row in rows],
        numeric=[place for place, index in enumerate(kept) if index in (3, 4)],
    )


def line_table(block: LineChart) -> Table:
    """Each point, where all series have the same few x; else a row of key figures a series."""
    places = [x for x, _ in block.series[0].points] if block.series else []
    same = all([x for x, _ in series.points] == places for series in block.series)
    if not same or len(places) > ROWS:
        return _key_figures(block)
    rows = [
        [value_text(x, block.x.unit), *(_point_text(block, each, at) for each in block.series)]
        for at, x in enumerate(places)
    ]
    columns = [block.x.title, *(series.name for series in block.series)]
    return Table(columns, rows, numeric=list(range(len(columns))))


def _point_text(block: LineChart, series: Series, at: int) -> str:
    y = series.points[at][1]
    if y is None:
        return NOTHING
    text = value_text(y, block.y.unit)
    if not series.band or series.band[at][0] == series.band[at][1]:
        return text
    low, high = (value_text(end, block.y.unit) for end in series.band[at])
    return f"{text} ({low} to {high})"


def _key_figures(block: LineChart) -> Table:
    rows = []
    for series in block.series:
        drawn = [(x, y) for x, y in series.points if y is not None]
        if not drawn:
            rows.append([series.name, "0", *[NOTHING] * 4])
            continue
        low, high = min(drawn, key=lambda point: point[1]), max(drawn, key=lambda point: point[1])
        texts = [value_text(y, block.y.unit) for y in (low[1], high[1], drawn[-1][1])]
        at = value_text(high[0], block.x.unit)
        rows.append([series.name, f"{len(drawn):,}", *texts[:2], at, texts[2]])
    columns = ["", "points", "lowest", "highest", f"highest at {block.x.title}".strip(), "last"]
    return Table(columns, rows, numeric=[1, 2, 3, 4, 5])
