"""Memory maps and bars of bytes in characters, told apart with and without colour."""

from __future__ import annotations

from rich.text import Text

from vramkit.report.blocks import MEMORY_NAMES, Bars, MemoryMap, MemoryState, Run
from vramkit.report.terminal_style import shortened
from vramkit.report.units import bytes_text

LEVELS = "▁▂▃▄▅▆▇█"  # eighths of a cell in use
SIGNS: dict[MemoryState, str] = {
    "live": "█",
    "cached": "c",
    "waiting": "w",
    "idle": "·",
    "rest": "-",
    "none": " ",
}
COLOURS: dict[MemoryState, str] = {
    "live": "blue",
    "cached": "green",
    "waiting": "yellow",
    "idle": "dim",
    "rest": "dim",
    "none": "",
}


def memory_map_lines(block: MemoryMap, width: int) -> list[Text]:
    """A row a stretch of addresses, which are left out where the lines would not fit."""
    address = max((len(f"{row.address:x}") for row in block.rows), default=0) + 2
    shown = address + block.cells <= width
    lines = [Text(block.title, style="bold")]
    for row in block.rows:
        if row.apart:
            lines.append(Text())
        line = Text(f"{row.address:x}".ljust(address) if shown else "", style="dim")
        for run in row.runs:
            line.append_text(_run(run))
        line.rstrip()
        lines.append(line)
    lines.append(_legend([state for row in block.rows for state, n in row.nbytes.items() if n]))
    if block.caption:
        lines.append(Text(block.caption, style="dim"))
    return lines


def _run(run: Run) -> Text:
    if run.used:
        return Text(LEVELS[run.used - 1] * run.cells, style=COLOURS["live"])
    return Text(SIGNS[run.state] * run.cells, style=COLOURS[run.state])


def bars_lines(block: Bars, width: int) -> list[Text]:
    longest = max((sum(bar.nbytes.values()) for bar in block.bars), default=0) or 1
    label = min(max((len(bar.label) for bar in block.bars), default=0), width // 3)
    columns = max(10, width - label - 14)
    lines = [Text(block.title, style="bold")]
    for bar in block.bars:
        line = Text(f"{shortened(bar.label, label).ljust(label)}  ")
        drawn = done = 0
        for state in MEMORY_NAMES:
            done += bar.nbytes.get(state, 0)
            upto = max(round(columns * done / longest), 1 if done else 0)
            line.append(SIGNS[state] * (upto - drawn), style=COLOURS[state])
            drawn = upto
        line.append(f"  {bytes_text(done)}", style="dim")
        lines.append(line)
    lines.append(_legend([state for bar in block.bars for state, n in bar.nbytes.items() if n]))
    if block.caption:
        lines.append(Text(block.caption, style="dim"))
    return lines


def _legend(states: list[MemoryState]) -> Text:
    line = Text()
    for state, name in MEMORY_NAMES.items():
        if state in states:
            line.append(SIGNS[state], style=COLOURS[state])
            line.append(f" {name}   ", style="dim")
    line.rstrip()
    return line
