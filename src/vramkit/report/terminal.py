"""Draws blocks in a terminal with rich."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table as RichTable
from rich.text import Text as RichText

from vramkit.report import blocks
from vramkit.report.blocks import SIGNS
from vramkit.report.terminal_bar_chart import bar_chart_lines
from vramkit.report.terminal_line_chart import line_chart_lines
from vramkit.report.terminal_memory import bars_lines, memory_map_lines
from vramkit.report.terminal_style import TONES
from vramkit.report.terminal_timeline import timeline_lines

PROSE_COLUMNS = 4
"""From so many columns of words on a table that is too wide shows the cells of a row below each
other."""
NARROW = 7
"""Characters of a name that is not folded."""
GAP = 2
"""Spaces behind a column."""


def print_document(console: Console, document: blocks.Document) -> None:
    title = RichText(document.title, style="bold")
    if document.simulated is not None:
        title.append(f"  simulated, {document.simulated}", style="yellow")
    console.print(title)
    console.print(code_spans(document.summary))
    console.print()
    for name, value in document.facts:
        console.print(RichText.assemble((f"{name}: ", "dim"), value))
    for number, section in enumerate(document.sections, 1):
        print_heading(console, number, section.title)
        for block in section.blocks:
            print_block(console, block)


def print_heading(console: Console, number: int, title: str) -> None:
    console.print()
    console.print(RichText.assemble((f" {number} ", "reverse bold"), "  ", (title, "bold")))


def print_block(console: Console, block: blocks.Block) -> None:
    console.print()
    width, colour = console.width - 2, console.color_system is not None
    match block:
        case blocks.Timeline():
            drawn: RenderableType = Group(*timeline_lines(block, width, colour=colour))
        case blocks.Bars():
            drawn = Group(*bars_lines(block, width))
        case blocks.BarChart():
            drawn = Group(*bar_chart_lines(block, width))
        case blocks.LineChart():
            drawn = Group(*line_chart_lines(block, width, colour=colour))
        case blocks.MemoryMap():
            drawn = Group(*memory_map_lines(block, width))
        case _:
            drawn = _drawn(block)
    console.print(Padding(drawn, (0, 0, 0, 2)))


def code_spans(text: str) -> RichText:
    """Text with its `code` in another colour instead of backquotes."""
    result = RichText()
    for index, part in enumerate(re.split(r"`([^`]+)`", text)):
        result.append(part, style="cyan" if index % 2 else "")
    return result


def _drawn(
    block: (
        blocks.Text | blocks.Callout | blocks.Figures | blocks.Table | blocks.Code | blocks.Conflict
    ),
) -> RenderableType:
    match block:
        case blocks.Text(text):
            return code_spans(text)
        case blocks.Callout(tone, title, text):
            return _callout(SIGNS[tone], TONES[tone], title, text)
        case blocks.Figures(items):
            return _figures(items)
        case blocks.Table():
            return table(block)
        case blocks.Code():
            return _code(block)
        case blocks.Conflict():
            return _conflict(block)


def _callout(sign: str, colour: str, title: str, text: str) -> RenderableType:
    grid = RichTable.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    head = code_spans(title)
    head.stylize_before(f"bold {colour}")
    grid.add_row(RichText(sign, style=f"bold {colour}"), head)
    if text:
        grid.add_row("", code_spans(text))
    return grid


def table(block: blocks.Table) -> RenderableType:
    """The title stands above: as a part of the table it would be folded to the table's width."""
    drawn = _Fitted(block)
    return Group(RichText(block.title, style="bold"), drawn) if block.title else drawn


class _Fitted:
    """A table that is too wide for its terminal folds the names of columns of figures first. One
    that cannot be folded so far, or that has many columns of words, shows the cells of a row below
    each other, as on a phone."""

    def __init__(self, block: blocks.Table) -> None:
        self._block = block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        block = self._block
        names = list(block.columns)
        for index in sorted(block.numeric, key=lambda index: -len(names[index])):
            if _widths(console, block, names)[1] <= options.max_width:
                break
            names[index] = _folded(names[index], [row[index] for row in block.rows])
        least, most = _widths(console, block, names)
        prose = not block.numeric and len(names) >= PROSE_COLUMNS
        if any(names) and (most if prose else least) > options.max_width:
            yield from _below_each_other(block)
        else:
            yield _columns(block, names)


def _widths(console: Console, block: blocks.Table, names: list[str]) -> tuple[int, int]:
    """With every word of words in a line of its own, and with no line folded."""
    least = most = 0
    for index, cells in enumerate(zip(names, *block.rows, strict=True)):
        sizes = [console.measure(code_spans(cell)) for cell in cells]
        widest = max(size.maximum for size in sizes)
        narrowest = max(size.minimum for size in sizes)
        least += GAP + (widest if index in block.numeric else narrowest)
        most += GAP + widest
    return least, most


def _folded(name: str, cells: list[str]) -> str:
    """About as wide as its cells, if its words allow that. Between words, and behind a "_"."""
    pieces = re.split(r"(?<=_)|(?<= )", name)
    width = max(NARROW, *(len(each.rstrip()) for each in [*cells, *pieces]))
    lines = [""]
    for piece in pieces:
        if len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _below_each_other(block: blocks.Table) -> Iterator[RenderableType]:
    for first, *rest in block.rows:
        yield RichText.assemble(code_spans(first), style="bold")
        for name, cell in zip(block.columns[1:], rest, strict=True):
            if cell:
                yield Padding(
                    RichText.assemble((f"{name}: ", "dim"), code_spans(cell)), (0, 0, 0, 2)
                )


def _columns(block: blocks.Table, names: list[str]) -> RichTable:
    drawn = RichTable(header_style="dim", box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    drawn.show_header = any(block.columns)
    for index, name in enumerate(names):
        right = index in block.numeric
        justify: Literal["right", "left"] = "right" if right else "left"
        drawn.add_column(name, justify=justify, no_wrap=right, overflow="fold")
    for row in block.rows:
        drawn.add_row(*(code_spans(cell) for cell in row))
    return drawn


def _figures(items: list[blocks.Figure]) -> RenderableType:
    grid = RichTable.grid(padding=(0, 4, 0, 0))
    for _ in items:
        grid.add_column()
    grid.add_row(*(RichText(item.value, style=f"bold {TONES[item.tone]}") for item in items))
    grid.add_row(*(RichText(item.label, style="dim") for item in items))
    return grid


def _code(block: blocks.Code) -> RenderableType:
    drawn = Syntax(
        block.text.rstrip("\n"),
        block.language,
        theme="ansi_dark",
        line_numbers=True,
        start_line=block.first_line,
        highlight_lines=set(block.marked),
        background_color="default",
        word_wrap=True,
    )
    notes = [
        RichText(f"  line {line}: {word}", style=TONES[block.tone])
        for line, word in sorted(block.marked.items())
    ]
    return Group(RichText(block.title, style="bold"), drawn, *notes)


def _conflict(block: blocks.Conflict) -> RenderableType:
    sides = RichTable.grid(padding=(0, 2, 0, 0))
    sides.add_column(style="dim", no_wrap=True)
    sides.add_column(overflow="fold")
    labels = ("first", "second") if len(block.sides) > 1 else ("call",)
    for label, (who, where) in zip(labels, block.sides, strict=True):
        sides.add_row(label, code_spans(who))
        if where:
            sides.add_row("", RichText(where, style="dim"))
    sides.add_row("fix", code_spans(block.fix))
    return Group(
        RichText(f"{SIGNS[block.tone]} {block.title}", style=f"bold {TONES[block.tone]}"),
        Padding(Group(code_spans(block.what), sides), (0, 0, 0, 2)),
    )
