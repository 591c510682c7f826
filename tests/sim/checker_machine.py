"""Random programs: one step at a time on the simulated GPU and in the reference, side by side.

A step is a line of text such as "send n 0:2 1": its verb is a method of Runner, its words are
streams by letter, events by number, and cells of memory as start:count (the sides of a copy have
one count). A stream "-" is the call without one, which uses the legacy stream and may wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from types import FunctionType
from typing import NamedTuple, Self

from vramkit.driver import Driver, DriverError, Memory, Span, Stream

from .hb_reference import LEGACY, Cells, Reference, Uses

CELL = 1 << 16  # bytes: a copy of one outlasts a few calls
DEVICE_CELLS = 8
PINNED_CELLS = 4
CELLS = DEVICE_CELLS + PINNED_CELLS  # the pinned ones are numbered after the device's
SUMS = 2  # words that kernels add to, numbered after all cells

MADE = "bBnN"  # streams of the program: two blocking ones, two that are not
STREAMS = "lp" + MADE  # and the default streams: legacy, per-thread
EVENTS = "123"


def operation_frame(number: int, body: Callable[[], object]) -> None:
    """Call body() from a frame whose name is the operation's number, for reports to name it by."""
    code = call.__code__.replace(co_name=f"operation_{number}")
    FunctionType(code, {})(body)


def call(body: Callable[[], object]) -> None:
    body()


def operation_of(frames: Sequence[str]) -> int:
    matches = (re.search(r" in operation_(\d+)$", frame) for frame in frames)
    (number,) = (int(found[1]) for found in matches if found)
    return number


class Finding(NamedTuple):
    """A report, by its operations and streams. None: the host."""

    kind: str
    first: int
    second: int
    first_stream: int | None
    second_stream: int | None


class Runner:
    """Executes steps. `expected` is what the reference finds in the newest one, and `contents` what
    the cells hold (one word each, all over) when everything runs at once as it is issued.

    With `race_free`, each step first waits, by events, for whatever it would race with; and what
    the host reads is compared with `contents`.
    """

    def __init__(self, driver: Driver, *, race_free: bool = False) -> None:
        assert driver.sim is not None
        driver.sim.reset(stacks="python")
        self.sim, self.device = driver.sim, driver.device()
        self.reference = Reference()
        self.expected: set[Finding] = set()
        self.contents = [0] * CELLS
        self.sums = [0] * SUMS
        self.misread: list[str] = []  # by host functions
        self._race_free = race_free
        self._number = 0
        self._issuers: list[tuple[str, int | None]] = []  # of each step: letter and stream id
        self._memory = self.device.alloc(DEVICE_CELLS * CELL)
        self._pinned = self.device.alloc_pinned(PINNED_CELLS * CELL)
        self._pinned.write(bytes(PINNED_CELLS * CELL))
        self._sums = self.device.alloc(SUMS * 8)
        self.device.fill(self._memory, 0)
        self.device.fill(self._sums, 0)
        self.device.synchronize()
        self._events = {number: self.device.event() for number in EVENTS}
        self._recorded: set[str] = set()
        self._streams = {"l": self.device.legacy_stream, "p": self.device.per_thread_stream}
        self._names = {"l": LEGACY, "p": "per-thread"}
        self.reference.open("per-thread", blocking=True)
        for letter in MADE:
            self._open(letter)

    def _open(self, letter: str) -> None:
        blocking = letter in "bB"
        self._streams[letter] = self.device.stream(blocking=blocking)
        self._names[letter] = f"{letter}{self._number}"
        self.reference.open(self._names[letter], blocking=blocking)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.device.synchronize()
        for thing in (*self._events.values(), *map(self._streams.get, MADE)):
            assert thing is not None
            thing.close()
        self._memory.close()
        self._sums.close()
        self._pinned.close()

    def step(self, text: str) -> None:
        verb, *words = text.split()
        self.expected = set()
        self._issuers.append(("", None))
        getattr(self, verb)(*words)
        self._number += 1

    def found(self) -> set[Finding]:
        """What the checker has reported since the last time."""
        reports = self.sim.reports()
        self.sim.clear_reports()
        return {
            Finding(
                report.kind,
                operation_of(report.first.frames),
                operation_of(report.second.frames),
                report.first.stream,
                report.second.stream,
            )
            for report in reports
        }

    def read_back(self) -> list[int]:
        """What the cells hold after all work."""
        self.device.synchronize()
        whole = bytearray(DEVICE_CELLS * CELL)
        self.device.copy(whole, self._memory)
        return words_of(bytes(whole) + self._pinned.read())

    def read_back_sums(self) -> list[int]:
        self.device.synchronize()
        whole = bytearray(SUMS * 8)
        self.device.copy(whole, self._sums)
        return [int.from_bytes(whole[at : at + 8], "little") for at in range(0, len(whole), 8)]

    # Work of streams

    def spin(self, letter: str) -> None:
        self.reference.issue(self._names[letter])
        self.device.kernels.spin(50_000, stream=self._streams[letter])

    def fill(self, letter: str, target: str) -> None:
        def execute(stream: Stream | None) -> None:
            self.device.fill(self._span(target), word, width=4, stream=stream)

        word = self._number + 1
        self._work(letter, execute, [("write", cells(target))])
        self._store(target, [word] * len(cells(target)))

    def send(self, letter: str, target: str, source: str) -> None:
        """Host to device, from pinned memory. The call without a stream waits for it."""
        self._copy(letter, target, pinned(source, target), waits=letter == "-")

    def fetch(self, letter: str, target: str, source: str) -> None:
        """Device to host, to pinned memory. The call without a stream waits for it."""
        self._copy(letter, pinned(target), like(source, target), waits=letter == "-")

    def move(self, letter: str, target: str, source: str) -> None:
        """On the device: no call waits. Of overlapping cells CUDA does not say what comes out."""
        if cells(target).isdisjoint(cells(like(source, target))):
            self._copy(letter, target, like(source, target), waits=False)

    def send_pageable(self, letter: str, target: str) -> None:
        """The source is free on return, and that is all; without a stream, what was in the legacy
        stream before is over."""

        def execute(stream: Stream | None) -> None:
            self.device.copy(self._span(target), data, stream=stream)

        word = self._number + 1
        data = word.to_bytes(4, "little") * (len(cells(target)) * CELL // 4)
        if letter == "-":
            self.reference.host_waits_for_stream(LEGACY)
        self._work(letter, execute, [("write", cells(target))])
        self._store(target, [word] * len(cells(target)))

    def fetch_pageable(self, letter: str, source: str) -> None:
        """Complete on return, with or without a stream."""

        def execute(stream: Stream | None) -> None:
            self.device.copy(result, self._span(source), stream=stream)

        result = bytearray(len(cells(source)) * CELL)
        self._work(letter, execute, [("read", cells(source))])
        self._check(source, result)
        self.reference.host_waits_for_stream(self._names["l" if letter == "-" else letter])

    def add(self, letter: str, target: str, a: str, b: str) -> None:
        a, b = like(a, target), like(b, target)
        words = len(cells(target)) * CELL // 4

        def execute(stream: Stream | None) -> None:
            assert stream is not None
            spans = self._span(target), self._span(a), self._span(b)
            self.device.kernels.add(*spans, words, stream=stream)

        uses: Uses = [("read", cells(a)), ("read", cells(b)), ("write", cells(target))]
        self._work(letter, execute, uses)
        pairs = zip(self._load(a), self._load(b), strict=True)
        self._store(target, [(x + y) % (1 << 32) for x, y in pairs])

    def sum(self, letter: str, number: str, source: str) -> None:
        """Adds all words of some cells to a sum, atomically."""
        words = len(cells(source)) * CELL // 4

        def execute(stream: Stream | None) -> None:
            assert stream is not None
            span = self._span(source)
            self.device.kernels.checksum(span, words, self._sum(number), stream=stream)

        self._work(letter, execute, [("read", cells(source)), ("atomic", sum_cell(number))])
        self.sums[int(number)] += sum(self._load(source)) * (CELL // 4)

    def clear_sum(self, letter: str, number: str) -> None:
        def execute(stream: Stream | None) -> None:
            self.device.fill(self._sum(number), 0, stream=stream)

        self._work(letter, execute, [("write", sum_cell(number))])
        self.sums[int(number)] = 0

    def fetch_sum(self, letter: str, number: str) -> None:
        """To pageable memory: complete on return."""

        def execute(stream: Stream | None) -> None:
            self.device.copy(result, self._sum(number), stream=stream)

        result = bytearray(8)
        self._work(letter, execute, [("read", sum_cell(number))])
        if self._race_free:
            assert int.from_bytes(result, "little") == self.sums[int(number)]
        self.reference.host_waits_for_stream(self._names["l" if letter == "-" else letter])

    def call_read(self, letter: str, source: str) -> None:
        """A host function that reads pinned memory, when its stream gets there."""
        expected, span = self._load(pinned(source)), self._host_span(source)

        def look() -> None:
            if words_of(self._pinned.read(*span)) != expected:
                self.misread.append(f"operation {number}")

        number = self._number
        self._host_function(letter, look, [("read", cells(pinned(source)))])

    def call_write(self, letter: str, target: str) -> None:
        """A host function that writes pinned memory."""
        offset, nbytes = self._host_span(target)
        word = self._number + 1
        data = word.to_bytes(4, "little") * (nbytes // 4)

        def put() -> None:
            self._pinned.write(data, offset)

        self._host_function(letter, put, [("write", cells(pinned(target)))])
        self._store(pinned(target), [word] * len(cells(target)))

    def _host_function(self, letter: str, body: Callable[[], None], uses: Uses) -> None:
        def execute(stream: Stream | None) -> None:
            assert stream is not None
            stream.host_function(body)

        self._work(letter, execute, uses)

    def _copy(self, letter: str, target: str, source: str, *, waits: bool) -> None:
        def execute(stream: Stream | None) -> None:
            self.device.copy(self._span(target), self._span(source), stream=stream)

        self._work(letter, execute, [("read", cells(source)), ("write", cells(target))])
        self._store(target, self._load(source))
        if waits:
            self.reference.host_waits_for_stream(LEGACY)

    def _work(self, letter: str, execute: Callable[[Stream | None], None], uses: Uses) -> None:
        issuer = "l" if letter == "-" else letter
        stream, name = self._streams[issuer], self._names[issuer]
        if self._race_free:
            probe = deepcopy(self.reference)
            for earlier in probe.races(probe.issue(name), uses):
                self._order(earlier, lambda other: self.follow(issuer, other))
        self._issuers[-1] = (issuer, stream.id)
        node = self.reference.issue(name)
        self._expect(self.reference.races(node, uses))
        self.reference.add_accesses(self._number, node, name, uses)
        operation_frame(self._number, lambda: execute(None if letter == "-" else stream))

    def _order(self, earlier: int, wait: Callable[[str], None]) -> None:
        letter, stream = self._issuers[earlier]
        if self._streams[letter].id == stream:
            wait(letter)
        else:  # destroyed since
            self.synchronize_all()

    def _expect(self, races: dict[int, str]) -> None:
        _, stream = self._issuers[-1]
        self.expected = {
            Finding(kind, earlier, self._number, self._issuers[earlier][1], stream)
            for earlier, kind in races.items()
        }

    # Order

    def record(self, number: str, letter: str) -> None:
        self.reference.record(number, self._names[letter])
        self._events[number].record(self._streams[letter])
        self._recorded.add(number)

    def wait(self, letter: str, number: str) -> None:
        self.reference.wait(self._names[letter], number)
        self._streams[letter].wait(self._events[number])

    def follow(self, letter: str, other: str) -> None:
        """One stream waits for all that another holds."""
        self.reference.record("follow", self._names[other])
        self.reference.wait(self._names[letter], "follow")
        self._streams[letter].wait(self._streams[other])

    def synchronize(self, letter: str) -> None:
        self.reference.host_waits_for_stream(self._names[letter])
        self._streams[letter].synchronize()

    def synchronize_event(self, number: str) -> None:
        self.reference.host_waits_for_event(number)
        self._events[number].synchronize()

    def synchronize_all(self) -> None:
        self.reference.host_waits_for_all()
        self.device.synchronize()

    def query(self, letter: str) -> None:
        if self._streams[letter].query():
            self.reference.host_waits_for_stream(self._names[letter])

    def query_event(self, number: str) -> None:
        if self._events[number].query():
            self.reference.host_waits_for_event(number)

    def elapsed(self, start: str, end: str) -> None:
        """The time between two events: known once both are reached."""
        if not {start, end} <= self._recorded:
            return
        try:
            self._events[end].elapsed_since(self._events[start])
        except DriverError as error:
            assert "NOT_READY" in str(error)
        else:
            self.reference.host_waits_for_event(start)
            self.reference.host_waits_for_event(end)

    def renew(self, letter: str) -> None:
        """Destroy a stream, with all that is still in it, and make another one."""
        self._streams[letter].close()
        self._open(letter)

    def free(self) -> None:
        """Of memory that nothing uses: the driver waits for everything, and does not say so."""
        self.reference.host_waits_undocumented()
        self.device.alloc(CELL).close()

    def advance(self) -> None:
        self.sim.advance(20e-6)

    # The host's own accesses

    def read(self, source: str) -> None:
        def execute() -> None:
            self._check(pinned(source), self._pinned.read(*self._host_span(source)))

        self._host_access([("read", cells(pinned(source)))], execute)

    def write(self, target: str) -> None:
        offset, nbytes = self._host_span(target)
        word = self._number + 1
        data = word.to_bytes(4, "little") * (nbytes // 4)
        uses: Uses = [("write", cells(pinned(target)))]
        self._host_access(uses, lambda: self._pinned.write(data, offset))
        self._store(pinned(target), [word] * len(cells(target)))

    def _host_access(self, uses: Uses, execute: Callable[[], object]) -> None:
        if self._race_free:
            probe = deepcopy(self.reference)
            for earlier in probe.races(probe.host_acts(), uses):
                self._order(earlier, self.synchronize)
        self._expect(self.reference.races(self.reference.host_acts(), uses))
        operation_frame(self._number, execute)

    # Cells

    def _span(self, text: str) -> Span:
        chosen = sorted(cells(text))
        memory: Memory = self._memory
        if chosen[0] >= DEVICE_CELLS:
            memory, chosen = self._pinned, [cell - DEVICE_CELLS for cell in chosen]
        return memory.at(chosen[0] * CELL, len(chosen) * CELL)

    def _sum(self, number: str) -> Span:
        return self._sums.at(int(number) * 8, 8)

    def _host_span(self, text: str) -> tuple[int, int]:
        start, count = map(int, text.split(":"))
        return start * CELL, count * CELL

    def _check(self, text: str, data: bytes | bytearray) -> None:
        if self._race_free:
            assert words_of(data) == self._load(text)

    def _load(self, text: str) -> list[int]:
        return [self.contents[cell] for cell in sorted(cells(text))]

    def _store(self, text: str, words: Sequence[int]) -> None:
        for cell, word in zip(sorted(cells(text)), words, strict=True):
            self.contents[cell] = word


def words_of(data: bytes | bytearray) -> list[int]:
    """The word in each cell; -1 for one that is not the same all over."""
    words = []
    for at in range(0, len(data), CELL):
        cell = data[at : at + CELL]
        same = cell == cell[:4] * (CELL // 4)
        words.append(int.from_bytes(cell[:4], "little") if same else -1)
    return words


def cells(text: str) -> Cells:
    start, count = map(int, text.split(":"))
    return frozenset(range(start, start + count))


def sum_cell(number: str) -> Cells:
    return frozenset([CELLS + int(number)])


def like(start: str, other: str) -> str:
    return f"{start}:{len(cells(other))}"


def pinned(text: str, other: str = "") -> str:
    """Cells of pinned memory, counted from its own start, among all cells."""
    start, _, count = text.partition(":")
    return f"{DEVICE_CELLS + int(start)}:{count or len(cells(other))}"
