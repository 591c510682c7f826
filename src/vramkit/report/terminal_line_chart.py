"""A line chart in characters: braille dots in colour, a letter for each series without."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase

from rich.text import Text

from vramkit.report.axis import Scale
from vramkit.report.blocks import LineChart, Series
from vramkit.report.chart_scales import Axes, axes_of
from vramkit.report.terminal_style import SERIES, shortened

ROWS, Y_TICKS = 12, 5  # intervals, at most
LEAST_COLUMNS = 20
BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a cell, by row and column
LEVEL = "╌"


def line_chart_lines(block: LineChart, width: int, *, colour: bool = True) -> list[Text]:
    """At most `width` columns wide. Where lines meet, the last one has the character; no bands."""
    lines = [Text(block.title, style="bold")]
    axes = axes_of(block, max(2, width // 14), Y_TICKS)
    if axes is None:
        return [*lines, Text("No values.", style="dim"), *_caption(block)]
    label = max((len(tick.text) for tick in axes.y.ticks), default=0)
    columns = max(LEAST_COLUMNS, width - label - 2)
    texts = {_row(axes.y.share(tick.value)): tick.text for tick in axes.y.ticks}
    cells = _cells(block, axes, columns, braille=colour or len(block.series) == 1)
    if block.y.title:
        lines.append(Text(shortened(block.y.title, width), style="dim"))
    for row in range(ROWS):
        start = (texts.get(row, "").rjust(label) + (" ┤" if row in texts else " │"), "dim")
        line = Text.assemble(start, *cells[row])
        line.rstrip()
        lines.append(line)
    lines += _x_axis(axes.x, label, columns, block.x.title)
    return [*lines, *_legend(block, width, colour=colour), *_caption(block)]


def _caption(block: LineChart) -> list[Text]:
    return [Text(block.caption, style="dim")] if block.caption else []


def _row(share: float) -> int:
    return min(int((1 - share) * ROWS), ROWS - 1)


def _colour(index: int) -> str:
    return SERIES[index % len(SERIES)]


def _sign(index: int) -> str:
    return ascii_lowercase[index % len(ascii_lowercase)]


def _cells(
    block: LineChart, axes: Axes, columns: int, *, braille: bool
) -> list[list[tuple[str, str]]]:
    """Characters and their styles, row by row."""
    cells = [[(" ", "")] * columns for _ in range(ROWS)]
    for level in block.levels:
        if axes.y.shows(level.value):
            cells[_row(axes.y.share(level.value))] = [(LEVEL, "dim")] * columns
    bits = [[0] * columns for _ in range(ROWS)]
    for index, series in enumerate(block.series):
        for x, y in _dots(series, axes, columns * 2, ROWS * 4):
            row, column = y // 4, x // 2
            bits[row][column] |= DOTS[y % 4][x % 2]
            sign = chr(BRAILLE + bits[row][column]) if braille else _sign(index)
            cells[row][column] = (sign, _colour(index))
    return cells


def _dots(series: Series, axes: Axes, columns: int, rows: int) -> Iterator[tuple[int, int]]:
    """Every dot that the line passes, from the upper left corner."""
    before: tuple[int, int] | None = None
    for x, y in series.points:
        if y is None or not axes.shows(x, y):
            before = None
            continue
        left, top = axes.place(x, y)
        here = min(int(left * columns), columns - 1), min(int(top * rows), rows - 1)
        if before is None:
            yield here
        elif series.step:
            yield from _straight(before, (here[0], before[1]))
            yield from _straight((here[0], before[1]), here)
        else:
            yield from _straight(before, here)
        before = here


def _straight(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    for step in range(steps + 1):
        part = step / steps
        yield (
            start[0] + round((end[0] - start[0]) * part),
            start[1] + round((end[1] - start[1]) * part),
        )


def _x_axis(scale: Scale, label: int, columns: int, title: str) -> list[Text]:
    """Ticks with texts below them, as many as fit, and the title in the middle."""
    line, texts = ["─"] * columns, [" "] * columns
    free = 0
    for tick in scale.ticks:
        at = min(round(scale.share(tick.value) * columns), columns - 1)
        start = max(0, min(at - len(tick.text) // 2, columns - len(tick.text)))
        if start >= free:
            line[at] = "┬"
            texts[start : start + len(tick.text)] = tick.text
            free = start + len(tick.text) + 2
    before = " " * (label + 1)
    rows = [f"{before}└{''.join(line)}", f"{before} {''.join(texts).rstrip()}"]
    rows += [f"{before} {shortened(title, columns).center(columns).rstrip()}"] if title else []
    return [Text(row, style="dim") for row in rows]


def _legend(block: LineChart, width: int, *, colour: bool) -> list[Text]:
    """As many entries in a row as fit."""
    braille = colour or len(block.series) == 1
    entries = [
        (("━" if braille else _sign(index), _colour(index)), series.name)
        for index, series in enumerate(block.series)
    ]
    entries += [((LEVEL, "dim"), level.name) for level in block.levels]
    lines = [Text()]
    for sign, name in entries:
        entry = Text.assemble(sign, f" {shortened(name, width - 2)}")
        if lines[-1] and len(lines[-1]) + len(entry) + 3 > width:
            lines.append(Text())
        lines[-1].append("   " if lines[-1] else "").append_text(entry)
    return lines
