"""The pieces of a report. They are data: the terminal and the HTML page draw the same ones."""

from __future__ import annotations

from typing import Literal

import msgspec

Tone = Literal["plain", "good", "note", "warning", "bad"]


class Text(msgspec.Struct, frozen=True, tag="text"):
    """A paragraph. `code` in backquotes is set as code."""

    text: str


class Callout(msgspec.Struct, frozen=True, tag="callout"):
    """What the reader should not miss."""

    tone: Tone
    title: str
    text: str = ""


class Figure(msgspec.Struct, frozen=True):
    """One large number with its unit and what it is."""

    value: str
    label: str
    tone: Tone = "plain"


class Figures(msgspec.Struct, frozen=True, tag="figures"):
    items: list[Figure]


class Table(msgspec.Struct, frozen=True, tag="table"):
    """Rows of text. `numeric` names the columns (from 0) that are set flush right."""

    columns: list[str]
    rows: list[list[str]]
    title: str = ""
    numeric: list[int] = []


class Code(msgspec.Struct, frozen=True, tag="code"):
    """A program text; `marked` are line numbers to point at, with a word on each.

    Lines count from `first_line`: a part of a file keeps its numbers.
    """

    title: str
    text: str
    language: str = "python"
    first_line: int = 1
    marked: dict[int, str] = {}
    tone: Tone = "bad"


class Span(msgspec.Struct, frozen=True):
    """One piece of work on a lane; seconds from the start of the timeline."""

    name: str
    start: float
    end: float
    kind: Literal["copy_in", "copy_out", "kernel", "other"] = "other"


class Lane(msgspec.Struct, frozen=True):
    name: str
    spans: list[Span]


class Timeline(msgspec.Struct, frozen=True, tag="timeline"):
    """Lanes over one time axis. Timelines that share `scale` (seconds) can be compared by eye."""

    title: str
    lanes: list[Lane]
    scale: float
    caption: str = ""


MemoryState = Literal["live", "cached", "waiting", "idle", "rest", "none"]

# The states as readers know them; "none" is memory of no extent and has no name.
MEMORY_NAMES: dict[MemoryState, str] = {
    "live": "in use",
    "cached": "cached",
    "waiting": "waiting",
    "idle": "idle",
    "rest": "rest",
}


class Bar(msgspec.Struct, frozen=True):
    """One row of bytes by state."""

    label: str
    nbytes: dict[MemoryState, int]


class Bars(msgspec.Struct, frozen=True, tag="bars"):
    """Bars of bytes on one scale. `first` is the head of the column of labels in the table."""

    title: str
    first: str
    bars: list[Bar]
    caption: str = ""


class Run(msgspec.Struct, frozen=True):
    """Neighbouring cells that look alike: `used` eighths of each in use, the other part in `state`.

    `stream` counts in MemoryMap.streams; -1: several, none, or one that is not listed.
    """

    cells: int
    used: int
    state: MemoryState
    tip: str = ""
    stream: int = -1


class MapRow(msgspec.Struct, frozen=True):
    """One stretch of addresses; `apart`: it does not follow on the row above."""

    address: int
    runs: list[Run]
    nbytes: dict[MemoryState, int]
    apart: bool = False


class MemoryMap(msgspec.Struct, frozen=True, tag="memory_map"):
    """Memory by address, a row for each `cells` times `cell_bytes` of it."""

    title: str
    cells: int
    cell_bytes: int
    rows: list[MapRow]
    streams: list[str] = []  # those with most bytes, for the page's filter
    caption: str = ""


class Conflict(msgspec.Struct, frozen=True, tag="conflict"):
    """Two accesses that are not ordered, or one that is wrong by itself.

    `sides` has one or two pairs of who and where; `fix` says what to change.
    """

    title: str
    what: str
    sides: list[tuple[str, str]]
    fix: str
    tone: Tone = "bad"


Block = Text | Callout | Figures | Table | Code | Timeline | Bars | MemoryMap | Conflict


class Section(msgspec.Struct, frozen=True):
    title: str
    blocks: list[Block]


class Document(msgspec.Struct, frozen=True):
    """A whole report. `facts` stand under the title (machine, driver, date, ...)."""

    title: str
    summary: str
    facts: list[tuple[str, str]]
    sections: list[Section]
    simulated: str | None = None  # the profile, where the card was a simulated one
