"""What a program did with device memory, as it was recorded: blocks, work and points of order.

A trace has no addresses and no handles: blocks, streams, events and threads are numbers from 0 on,
in the order in which they come. The program that is made of it is for a player (programs.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from vramkit.lab.program import LARGEST, MOST_THREADS, OWN_STREAM

MOST_EVENTS = 10_000_000
"""Of a file. Each takes 30 bytes, and that of a program as much again."""
MOST_STREAMS = 1 << 20
MOST_CUDA_EVENTS = 1 << 24
LATEST = (1 << 63) - 1

Source = Literal["plain", "vramkit record", "vramkit Recording", "PyTorch", "RMM"]


class TraceError(ValueError):
    """A file that is no trace; says which file, where and what is wrong."""


class Kind(IntEnum):
    """`what` and `streams` of an event depend on it."""

    ALLOCATE = 0
    """what: a block."""
    FREE = 1
    """what: a block. stream: of the free, or OWN_STREAM where the call names none."""
    LAUNCH = 2
    """what: so many kernels or graphs, in a row."""
    RECORD = 3
    """what: an event, recorded on the stream."""
    WAIT = 4
    """what: an event that the stream waits for."""
    EVENT_DONE = 5
    """what: the host knows that all work before this event is complete. stream: 0."""
    STREAM_DONE = 6
    """The same of all work on the stream. what: 0."""
    DEVICE_DONE = 7
    """The same of all work. what, stream: 0."""


@dataclass(frozen=True)
class Trace:
    """Events in order, as columns of equal length."""

    name: str
    source: Source
    kinds: array[int]
    """Of type 'B': Kind."""
    threads: array[int]
    """Of type 'H'."""
    what: array[int]
    """Of type 'q'."""
    streams: array[int]
    """Of type 'i'."""
    times: array[int]
    """Of type 'q': nanoseconds, from any moment on. Empty where the format has none."""
    sizes: array[int]
    """Of type 'q': bytes of each block, as asked for."""
    stream_count: int
    event_count: int
    thread_count: int
    peak_in_use: int
    """The largest sum of the sizes of live blocks."""
    refused: int = 0
    """Allocations that failed when it was recorded; they are not among the events."""
    held: int | None = None
    """Most bytes that the program's own allocator had taken from the driver, where the file says
    so."""
    has_work: bool = False
    """Launches and points of order were recorded, not only blocks."""

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def allocations(self) -> int:
        return len(self.sizes)


@dataclass
class TraceBuilder:
    """Collects events. Keys name live blocks, streams, events and threads.

    A key of a block may be used again once the block is freed. Raises ValueError for what no
    program can have done, and changes nothing then.
    """

    name: str
    source: Source
    timed: bool = False
    kinds: array[int] = field(default_factory=lambda: array("B"))
    threads: array[int] = field(default_factory=lambda: array("H"))
    what: array[int] = field(default_factory=lambda: array("q"))
    streams: array[int] = field(default_factory=lambda: array("i"))
    times: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    live: dict[Hashable, int] = field(default_factory=dict)
    refused: int = 0
    held: int | None = None
    _stream_numbers: dict[Hashable, int] = field(default_factory=dict)
    _event_numbers: dict[Hashable, int] = field(default_factory=dict)
    _thread_numbers: dict[Hashable, int] = field(default_factory=dict)
    _own: array[int] = field(default_factory=lambda: array("i"))
    _in_use: int = 0
    _peak: int = 0

    def allocate(
        self, key: Hashable, size: int, stream: Hashable = 0, thread: Hashable = 0, at: int = 0
    ) -> None:
        if key in self.live:
            raise ValueError(f"block {key} is allocated again before it is freed")
        if not 1 <= size <= LARGEST:
            raise ValueError(f"block {key} has {size} bytes; it may have 1 to 2^40")
        block, on = len(self.sizes), self.stream(stream)
        self._add(Kind.ALLOCATE, block, on, thread, at)
        self.live[key] = block
        self.sizes.append(size)
        self._own.append(on)
        self._in_use += size
        self._peak = max(self._peak, self._in_use)

    def free(
        self, key: Hashable, stream: Hashable | None = None, thread: Hashable = 0, at: int = 0
    ) -> None:
        block = self.live.get(key)
        if block is None:
            raise ValueError(f"block {key} is freed, but not in use")
        on = OWN_STREAM if stream is None else self.stream(stream)
        if on == self._own[block]:
            on = OWN_STREAM
        self._add(Kind.FREE, block, on, thread, at)
        del self.live[key]
        self._in_use -= self.sizes[block]

    def launch(self, count: int, stream: Hashable, thread: Hashable = 0, at: int = 0) -> None:
        if not 1 <= count < 1 << 32:
            raise ValueError(f"{count} launches; there may be 1 to 2^32")
        self._add(Kind.LAUNCH, count, self.stream(stream), thread, at)

    def record(self, event: Hashable, stream: Hashable, thread: Hashable = 0, at: int = 0) -> None:
        self._add(Kind.RECORD, self._event(event), self.stream(stream), thread, at)

    def wait(self, stream: Hashable, event: Hashable, thread: Hashable = 0, at: int = 0) -> None:
        self._add(Kind.WAIT, self._event(event), self.stream(stream), thread, at)

    def event_done(self, event: Hashable, thread: Hashable = 0, at: int = 0) -> None:
        self._add(Kind.EVENT_DONE, self._event(event), 0, thread, at)

    def stream_done(self, stream: Hashable, thread: Hashable = 0, at: int = 0) -> None:
        self._add(Kind.STREAM_DONE, 0, self.stream(stream), thread, at)

    def device_done(self, thread: Hashable = 0, at: int = 0) -> None:
        self._add(Kind.DEVICE_DONE, 0, 0, thread, at)

    def stream(self, key: Hashable) -> int:
        return _number(self._stream_numbers, key, MOST_STREAMS, "streams")

    def build(self) -> Trace:
        return Trace(
            self.name,
            self.source,
            self.kinds,
            self.threads,
            self.what,
            self.streams,
            self.times,
            self.sizes,
            len(self._stream_numbers),
            len(self._event_numbers),
            max(len(self._thread_numbers), 1),
            self._peak,
            self.refused,
            self.held,
            self.source == "vramkit record",
        )

    def _event(self, key: Hashable) -> int:
        return _number(self._event_numbers, key, MOST_CUDA_EVENTS, "events of CUDA")

    def _add(self, kind: Kind, what: int, stream: int, thread: Hashable, at: int) -> None:
        if len(self.kinds) >= MOST_EVENTS:
            raise ValueError(f"more than {MOST_EVENTS:,} events, the most that are read")
        if at > LATEST:
            raise ValueError(f"its time is {at} ns; it may be below 2^63")
        by = _number(self._thread_numbers, thread, MOST_THREADS, "threads")
        if self.timed:
            self.times.append(at)
        self.kinds.append(kind)
        self.threads.append(by)
        self.what.append(what)
        self.streams.append(stream)


def _number(known: dict[Hashable, int], key: Hashable, most: int, what: str) -> int:
    number = known.get(key)
    if number is None:
        if len(known) >= most:
            raise ValueError(f"more than {most:,} {what}, the most that are read")
        number = known[key] = len(known)
    return number


def decimal(text: str, what: str, most: int = LATEST) -> int:
    """Of ASCII digits only, as files have them."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 20) or int(text) > most:
        shown = text if len(text) <= 24 else f"{text[:21]}..."
        raise ValueError(f"{what} is {shown!r}; it may be a whole number from 0 to {most}")
    return int(text)
