"""A bar chart in characters: a row a bar, with and without colour."""

from __future__ import annotations

from rich.text import Text

from vramkit.report.axis import Scale
from vramkit.report.blocks import JUDGED, SIGNS, BarChart, Tone, ValueBar
from vramkit.report.chart_scales import bar_scale, series_names
from vramkit.report.chart_table import bar_text, spread_text
from vramkit.report.terminal_style import SERIES, TONES, shortened
from vramkit.report.units import value_text

EIGHTHS = " ▏▎▍▌▋▊▉█"
GOOD_COLUMNS, LEAST_COLUMNS = 24, 10  # of the bars; with fewer than good, no spreads in figures
BETTER = {"lower": "lower is better", "higher": "higher is better", "neither": ""}


def bar_chart_lines(block: BarChart, width: int) -> list[Text]:
    """At most `width` columns wide. Bars are solid up to the spread's low end, shaded within it."""
    lines = [Text(block.title, style="bold")]
    if not block.bars:
        return [*lines, Text("No values.", style="dim"), *_caption(block)]
    names = series_names(block)
    labels = _labels(block.bars, names, width)
    label = len(labels[0])
    values = _figures(block, spreads=True)
    if width - label - 4 - max(map(len, values)) < GOOD_COLUMNS:
        values = _figures(block, spreads=False)
    columns = max(LEAST_COLUMNS, width - label - 4 - max(map(len, values)))
    scale = bar_scale(block, max(3, columns // 10))
    group = ""
    for bar, name, value in zip(block.bars, labels, values, strict=True):
        if bar.group != group:
            lines.append(Text(bar.group, style="bold"))
            group = bar.group
        look = "" if bar.tone == "plain" else "bold"
        line = Text.assemble((name, look), "  ")
        if bar.value is None or scale is None:
            line.append(shortened(bar_text(bar, block.unit), width - label - 2), style="dim italic")
        else:
            line.append_text(_bar(bar, scale, columns, _style(bar, names)))
            line.append(f"  {value}", style=look)
        line.rstrip()
        lines.append(line)
    if scale is not None:
        lines.append(_axis(scale, label, columns))
    if BETTER[block.better]:
        lines.append(Text(BETTER[block.better], style="dim"))
    return [*lines, *_caption(block)]


def _caption(block: BarChart) -> list[Text]:
    return [Text(block.caption, style="dim")] if block.caption else []


def _labels(bars: list[ValueBar], names: list[str], width: int) -> list[str]:
    """All of one width. A label stands once for neighbours that share it; then comes the series."""
    labels, before = [], ("", "")
    for bar in bars:
        sign = f"{SIGNS[bar.tone]} " if bar.tone in JUDGED else ""
        again = len(names) > 1 and before == (bar.group, bar.label)
        labels.append("" if again else sign + bar.label)
        before = bar.group, bar.label
    labels = _column(labels, width // 3 if len(names) == 1 else width // 4)
    if len(names) == 1:
        return labels
    series = _column([bar.series for bar in bars], width // 4)
    return ["  ".join(pair) for pair in zip(labels, series, strict=True)]


def _column(texts: list[str], most: int) -> list[str]:
    width = min(max(map(len, texts)), most)
    return [shortened(text, width).ljust(width) for text in texts]


def _figures(block: BarChart, *, spreads: bool) -> list[str]:
    """What stands behind the bars."""
    texts = []
    for bar in block.bars:
        spread = spread_text(bar, block.unit) if spreads else ""
        parts = [value_text(bar.value, block.unit)] if bar.value is not None else []
        parts += [f"({spread})"] if spread else []
        parts += [bar.why] if spreads and parts else []
        texts.append(" ".join(filter(None, parts)))
    return texts


def _style(bar: ValueBar, names: list[str]) -> str:
    if len(names) > 1:
        return SERIES[names.index(bar.series) % len(SERIES)]
    tones: dict[Tone, str] = {**TONES, "plain": "blue"}
    return tones[bar.tone]


def _bar(bar: ValueBar, scale: Scale, columns: int, style: str) -> Text:
    value, low, high = bar.value or 0.0, bar.low, bar.high
    if not scale.shows(value):
        return Text(" " * columns)
    drawn = Text()
    spread = low is not None and high is not None and low < high
    upto = _eighths(low if spread and low is not None else value, scale, columns)
    end = _eighths(high if spread and high is not None else value, scale, columns)
    full, rest = divmod(upto, 8)
    if scale.log:  # a mark at the value, in a line that is the spread
        first, last = upto // 8, min(end // 8, columns - 1)
        at = min(_eighths(value, scale, columns) // 8, columns - 1)
        cells = ["─" if first <= column <= last else " " for column in range(columns)]
        cells[at] = "●"
        drawn.append("".join(cells), style=style)
        return drawn
    drawn.append("█" * full, style=style)
    if spread:
        middle = max(round(_eighths(value, scale, columns) / 8) - full, 0)
        drawn.append("▓" * middle, style=style)
        drawn.append("░" * max(round(end / 8) - full - middle, 0), style=style)
    elif rest or not full:
        drawn.append(EIGHTHS[max(rest, 1)] if value else "", style=style)
    drawn.append(" " * (columns - len(drawn)))
    return drawn


def _eighths(value: float, scale: Scale, columns: int) -> int:
    share = scale.share(value) if scale.shows(value) else 0.0
    return round(share * columns * 8)


def _axis(scale: Scale, label: int, columns: int) -> Text:
    """Texts begin at their ticks, as many as fit."""
    line = [" "] * (columns + 12)
    free = 0
    for tick in scale.ticks:
        at = round(scale.share(tick.value) * columns)
        if at >= free and at + len(tick.text) <= columns:
            line[at : at + len(tick.text)] = tick.text
            free = at + len(tick.text) + 2
    return Text(" " * (label + 2) + "".join(line).rstrip(), style="dim")
