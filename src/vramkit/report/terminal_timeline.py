"""A timeline in characters: one row a lane, eighth blocks for the edges, an axis below."""

from __future__ import annotations

from rich.text import Text

from vramkit.report.blocks import Lane, Span, Timeline
from vramkit.report.units import time_text

COLOURS = {"copy_in": "blue", "copy_out": "magenta", "kernel": "green", "other": "yellow"}
EIGHTHS = " ▏▎▍▌▋▊▉█"
SHADES = "█▒"
LABEL = 10  # at least: timelines below one another line up


def timeline_lines(timeline: Timeline, width: int, *, colour: bool = True) -> list[Text]:
    """Rows of a timeline, at most `width` columns wide; in plain text shades tell spans apart."""
    label = max((len(lane.name) for lane in timeline.lanes), default=0)
    label = max(label, LABEL)
    columns = max(20, width - label - 2)
    lines = [Text(timeline.title, style="bold")]
    for lane in timeline.lanes:
        draw = _coloured if colour else _shaded
        row = draw(lane, timeline.scale, columns)
        lines.append(Text.assemble((lane.name.ljust(label) + "  ", "dim"), row))
    lines.append(_axis(timeline.scale, label, columns))
    if timeline.caption:
        lines.append(Text(timeline.caption, style="dim"))
    return lines


def _edges(span: Span, scale: float, steps: int) -> tuple[int, int]:
    """First step and one past the last; a span shorter than a step still gets one."""
    factor = steps / scale if scale > 0 else 0.0
    start = min(round(span.start * factor), steps - 1)
    return start, min(max(round(span.end * factor), start + 1), steps)


def _ordered(lane: Lane) -> list[Span]:
    return sorted(lane.spans, key=lambda span: span.start)


def _shaded(lane: Lane, scale: float, columns: int) -> Text:
    row = [" "] * columns
    for index, span in enumerate(_ordered(lane)):
        start, end = _edges(span, scale, columns)
        row[start:end] = SHADES[index % 2] * (end - start)
    return Text("".join(row).rstrip())


def _coloured(lane: Lane, scale: float, columns: int) -> Text:
    """Neighbours of one kind alternate in brightness, so that the edge between them shows."""
    cells = [(" ", "")] * columns
    fill = [""] * columns  # the colour at the right edge of each cell
    for index, span in enumerate(_ordered(lane)):
        colour = ("bright_" if index % 2 else "") + COLOURS[span.kind]
        start, end = _edges(span, scale, columns * 8)
        for column in range(start // 8, (end - 1) // 8 + 1):
            late = max(start - column * 8, 0)
            if late:
                # Blocks grow from the left, so a late start draws what stands before it.
                style = f"{fill[column]} on {colour}" if fill[column] else f"{colour} reverse"
                cells[column] = (EIGHTHS[late], style)
            else:
                cells[column] = (EIGHTHS[min(end - column * 8, 8)], colour)
            fill[column] = colour
    text = Text()
    for character, style in cells:
        text.append(character, style)
    return text


def _axis(scale: float, label: int, columns: int) -> Text:
    end = time_text(scale)
    middle = time_text(scale / 2)
    axis = "0".ljust(columns // 2 - len(middle) // 2) + middle
    axis = axis.ljust(columns - len(end)) + end
    return Text(" " * (label + 2) + axis, style="dim")
