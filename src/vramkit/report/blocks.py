"""The pieces of a report. They are data: the terminal and the HTML page draw the same ones."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import msgspec

from vramkit.report.units import Unit

Tone = Literal["plain", "good", "note", "warning", "bad"]

# A tone is never told by its colour alone.
SIGNS: dict[Tone, str] = {"plain": "·", "good": "✓", "note": "i", "warning": "!", "bad": "✗"}
JUDGED: tuple[Tone, ...] = ("good", "warning", "bad")  # tones that say more than "look here"


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


class ValueBar(msgspec.Struct, frozen=True):
    """One bar: a value, and from `low` to `high` what repetitions of it gave.

    Without a value, `why` stands in the bar's place ("out of memory"). Beside a value it is a note.
    """

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    series: str = ""
    group: str = ""
    tone: Tone = "plain"
    why: str = ""

    def __post_init__(self) -> None:
        figures = [each for each in (self.value, self.low, self.high) if each is not None]
        if not all(math.isfinite(each) and each >= 0 for each in figures):
            raise ValueError(f"bar {self.label!r} has {figures}; bars show finite values from 0 up")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"bar {self.label!r} has one end of a spread; give low and high")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"bar {self.label!r} has a spread from {self.low} down to {self.high}")
        if self.value is None and self.low is not None:
            raise ValueError(f"bar {self.label!r} has a spread and no value")


class BarChart(msgspec.Struct, frozen=True, tag="bar_chart"):
    """Values to compare, in the order given. `first` is the head of the column of labels.

    Neighbours of one group stand below its name, those of one label beside each other, and each
    series has a colour and a pattern. A bar of another tone than plain is set in that tone.
    On a logarithmic scale a bar's length says nothing by itself, so the value is a mark on it;
    zeros have no mark, only their text.
    """

    title: str
    bars: list[ValueBar]
    unit: Unit
    first: str = ""
    better: Literal["lower", "higher", "neither"] = "neither"
    scale: Literal["linear", "log"] = "linear"
    caption: str = ""


class Axis(msgspec.Struct, frozen=True):
    """What runs along one side of a drawing. An axis from zero shows ratios as they are."""

    title: str
    unit: Unit = "count"
    scale: Literal["linear", "log"] = "linear"
    from_zero: bool = True  # on a linear axis; else from the least value


class Series(msgspec.Struct, frozen=True):
    """Points in the order of x; None: a gap in the line.

    `band` has the lowest and the highest y of each point. `step`: y holds until the next point.
    """

    name: str
    points: list[tuple[float, float | None]]
    band: list[tuple[float, float]] = []
    step: bool = False

    def __post_init__(self) -> None:
        if self.band and len(self.band) != len(self.points):
            raise ValueError(
                f"series {self.name!r} has {len(self.points)} points and a band of "
                f"{len(self.band)}; give both ends for each point, or no band"
            )
        if any(low > high for low, high in self.band):
            raise ValueError(f"series {self.name!r} has a band whose low end is above its high end")
        figures = [each for point in (*self.points, *self.band) for each in point]
        if not all(math.isfinite(each) for each in figures if each is not None):
            raise ValueError(f"series {self.name!r} has a value that is not finite; None is a gap")
        if any(after[0] < before[0] for before, after in pairwise(self.points)):
            raise ValueError(f"series {self.name!r} is not in the order of x; sort its points")


class Level(msgspec.Struct, frozen=True):
    """A value of y to compare with, as a line across: the size of a card, a bound."""

    name: str
    value: float
    tone: Tone = "plain"


class LineChart(msgspec.Struct, frozen=True, tag="line_chart"):
    """Lines over one pair of axes. On a logarithmic axis, zeros and below are gaps."""

    title: str
    series: list[Series]
    x: Axis
    y: Axis
    levels: list[Level] = []
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


Block = (
    Text
    | Callout
    | Figures
    | Table
    | Code
    | Timeline
    | Bars
    | BarChart
    | LineChart
    | MemoryMap
    | Conflict
)


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
