"""The rows of the benchmark of changing shapes, and the verdict over those of one program."""

import statistics

import machine
import msgspec
from frameworks_work import Part

NATIVE, EXPANDABLE, VRAMKIT = ALLOCATORS = ("native", "native_expandable", "vramkit")

MOST_OF_THE_BETTER = 1.02
MOST_OF_IN_USE = 1.03


class Measured(Part):
    """What the process of one row found."""

    in_use_bytes: int | None = None
    rounds: int = 0


class Row(msgspec.Struct):
    """One program with one allocator."""

    program: str
    allocator: str
    in_use_bytes: int | None = None
    """By tensors at most, as the allocator counts: PyTorch rounds each up to 512 B."""
    held_bytes: int | None = None
    """By the allocator at most, by its own count."""
    card_bytes: int | None = None
    """Gone from the card at most since the context was made, compiled code and libraries
    included. Looked at after each step of the first round and after each later round."""
    unit: str = "ms"
    median: float | None = None
    p10: float | None = None
    p90: float | None = None
    values: list[float] = []
    rounds: int = 0
    """Of each process, beside a first one that is not timed."""
    processes: int = 0
    equal: bool | None = None
    """To the results with PyTorch's allocator, bit by bit; None: nothing to compare."""
    difference: str = ""
    digest: str = ""
    details: dict[str, float] = {}
    """Of the last process."""
    seconds: float = 0.0
    """Of the longest process, import and building included."""
    error: str = ""

    def take(self, measured: Measured, seconds: float) -> None:
        """What one more process found."""
        self.processes += 1
        self.seconds = round(max(self.seconds, seconds), 1)
        self.rounds = self.rounds or measured.rounds
        self.in_use_bytes = larger(self.in_use_bytes, measured.in_use_bytes)
        self.held_bytes = larger(self.held_bytes, measured.peak_bytes)
        self.card_bytes = larger(self.card_bytes, measured.card_bytes)
        self.digest = measured.digest
        self.details = measured.details
        self.values = self.values + measured.milliseconds
        if not self.values:
            return
        self.median = statistics.median(self.values)
        self.p10 = self.p90 = self.values[0]
        if len(self.values) > 1:
            deciles = statistics.quantiles(self.values, n=10, method="inclusive")
            self.p10, self.p90 = deciles[0], deciles[-1]


def larger(first: int | None, second: int | None) -> int | None:
    return max((value for value in (first, second) if value is not None), default=None)


class Verdict(msgspec.Struct):
    """Over one program. None: what it needs was not measured."""

    program: str
    of_the_better: float | None = None
    """Held by vramkit, over the lesser of what PyTorch held with and without
    expandable_segments."""
    of_in_use: float | None = None
    """Held by vramkit, over what was in use under PyTorch's allocator."""
    of_the_faster: float | None = None
    """Median time with vramkit, over that of the faster of the two."""
    held_met: bool | None = None
    in_use_met: bool | None = None
    time_met: bool | None = None
    """Not met: p10 with vramkit is above p90 of the faster, as in compare_builds."""
    equal: bool | None = None


class Report(msgspec.Struct):
    benchmark: str
    device: str
    size: str
    machine: machine.Machine
    packages: dict[str, str]
    passes: int
    seconds: float
    """Of timed rounds that each process aims at."""
    complete: bool
    notes: list[str]
    verdicts: list[Verdict]
    rows: list[Row]

    def row(self, program: str, allocator: str) -> Row:
        """Made where it is missing."""
        for row in self.rows:
            if (row.program, row.allocator) == (program, allocator):
                return row
        self.rows.append(Row(program, allocator))
        return self.rows[-1]

    def programs(self) -> list[str]:
        return list(dict.fromkeys(row.program for row in self.rows))

    def judge(self) -> None:
        self.verdicts = [
            verdict(program, {row.allocator: row for row in self.rows if row.program == program})
            for program in self.programs()
        ]


def merged(reports: list[Report]) -> Report:
    """One report: a program of a later one replaces that of an earlier one, with all its rows."""
    first = reports[0]
    for other in reports[1:]:
        for what in ("device", "size", "packages"):
            ours, theirs = getattr(first, what), getattr(other, what)
            if ours != theirs:
                raise ValueError(f"the reports differ in {what}: {ours} and {theirs}")
        again = other.programs()
        first.rows = [row for row in first.rows if row.program not in again] + other.rows
        first.notes = list(dict.fromkeys(first.notes + other.notes))
    first.complete = not any(row.error for row in first.rows)
    first.judge()
    return first


def verdict(program: str, rows: dict[str, Row]) -> Verdict:
    """Rows that did not end well count for nothing: neither ours nor those of the peers."""
    found = Verdict(program)
    ours = rows.get(VRAMKIT)
    peers = [rows[name] for name in (NATIVE, EXPANDABLE) if name in rows]
    if ours is None or ours.error:
        return found
    found.equal = ours.equal
    held = [row.held_bytes for row in peers if row.held_bytes and not row.error]
    # Both peers must be there: the better of one is not the better of the two.
    if ours.held_bytes and len(held) == 2:
        found.of_the_better = ours.held_bytes / min(held)
        found.held_met = found.of_the_better <= MOST_OF_THE_BETTER
    native = rows.get(NATIVE)
    if ours.held_bytes and native is not None and native.in_use_bytes and not native.error:
        found.of_in_use = ours.held_bytes / native.in_use_bytes
        found.in_use_met = found.of_in_use <= MOST_OF_IN_USE
    timed = [row for row in peers if row.median is not None and not row.error]
    if ours.median is not None and ours.p10 is not None and len(timed) == 2:
        faster = min(timed, key=lambda row: row.median or 0)
        if faster.median and faster.p90 is not None:
            found.of_the_faster = ours.median / faster.median
            found.time_met = ours.median <= faster.median or ours.p10 <= faster.p90
    return found
