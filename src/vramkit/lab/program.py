"""What a program does with device memory, as data: the same steps for every allocator.

Workloads are made as programs, recorded runs are read as programs, and a player goes through the
steps on any resource (player.py). A program has no addresses: blocks, streams, events and threads
are numbers from 0 on.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum

LARGEST = 1 << 40
"""Bytes of the largest block; what a pool serves at most."""
MOST_THREADS = 1 << 16

OWN_STREAM = -1
"""Of a FREE: on the stream of the allocation."""


class Op(IntEnum):
    """`what` and `where` of a step depend on it; `where` is a stream unless said otherwise."""

    ALLOCATE = 0
    """what: a block of `sizes[block]` bytes."""
    FREE = 1
    """what: a block in use. where: a stream, or OWN_STREAM."""
    TOUCH = 2
    """A kernel writes the block `what`."""
    KERNEL = 3
    """A kernel of `what` nanoseconds that touches no memory."""
    RECORD = 4
    """what: an event."""
    WAIT = 5
    """The stream waits for the event `what`."""
    WAIT_FOR_EVENT = 6
    """The host waits for the event `what`; where: 0."""
    WAIT_FOR_STREAM = 7
    """The host waits for the stream; what: 0."""
    WAIT_FOR_DEVICE = 8
    """The host waits for all streams; what, where: 0."""
    LOCK = 9
    """The mutex of the program, which one thread holds at a time; what, where: 0."""
    UNLOCK = 10
    SECTION = 11
    """What follows counts for section `what`. Each thread has the step: all of them meet there."""


@dataclass(frozen=True)
class Program:
    """The steps of all threads in one order, as columns of equal length.

    With `in_turns` the threads do the steps in just this order. Otherwise each goes on by itself,
    and only a FREE, a TOUCH or a wait for something of another thread waits until that was done.

    Every block is allocated once and freed once, so that a player leaves nothing behind.
    """

    name: str
    ops: array[int]
    """Of type 'B': Op."""
    threads: array[int]
    """Of type 'H'."""
    what: array[int]
    """Of type 'q'."""
    where: array[int]
    """Of type 'i'."""
    sizes: array[int]
    """Of type 'q': bytes of each block, as asked for."""
    stream_count: int
    event_count: int
    thread_count: int
    peak_in_use: int
    """The largest sum of the sizes of live blocks, in the order of the steps."""
    sections: tuple[str, ...] = ("all",)
    in_turns: bool = False

    def __len__(self) -> int:
        return len(self.ops)

    @property
    def allocations(self) -> int:
        return len(self.sizes)

    def describe(self, step: int) -> str:
        """For errors: "step 7 of 'name', thread 0: ALLOCATE 3 (512 bytes), stream 1"."""
        op, what, where = Op(self.ops[step]), self.what[step], self.where[step]
        words = f"step {step} of {self.name!r}, thread {self.threads[step]}: {op.name}"
        if op in (Op.ALLOCATE, Op.FREE, Op.TOUCH):
            words += f" {what} ({self.sizes[what]} bytes)"
        elif op not in (Op.WAIT_FOR_STREAM, Op.WAIT_FOR_DEVICE, Op.LOCK, Op.UNLOCK):
            words += f" {what}"
        on_stream = op <= Op.WAIT or op == Op.WAIT_FOR_STREAM
        return f"{words}, stream {where}" if on_stream and where != OWN_STREAM else words


@dataclass
class ProgramBuilder:
    """Collects steps. Each method adds one step of `thread`; streams are made by being named.

    Raises ValueError for a step that no program may have, and changes nothing then.
    """

    name: str
    sections: tuple[str, ...] = ("all",)
    in_turns: bool = False
    _ops: array[int] = field(default_factory=lambda: array("B"))
    _threads: array[int] = field(default_factory=lambda: array("H"))
    _what: array[int] = field(default_factory=lambda: array("q"))
    _where: array[int] = field(default_factory=lambda: array("i"))
    _sizes: array[int] = field(default_factory=lambda: array("q"))
    _live: set[int] = field(default_factory=set)
    _streams: int = 0
    _events: int = 0
    _thread_count: int = 1
    _in_use: int = 0
    _peak: int = 0

    def allocate(self, size: int, stream: int = 0, *, thread: int = 0) -> int:
        """Returns the number of the block."""
        if not 1 <= size <= LARGEST:
            raise ValueError(f"a block has {size} bytes; it may have 1 to 2^40")
        block = len(self._sizes)
        self._add(Op.ALLOCATE, thread, block, self._stream(stream))
        self._sizes.append(size)
        self._live.add(block)
        self._in_use += size
        self._peak = max(self._peak, self._in_use)
        return block

    def free(self, block: int, stream: int = OWN_STREAM, *, thread: int = 0) -> None:
        if block not in self._live:
            raise ValueError(f"block {block} is freed, but not in use")
        where = stream if stream == OWN_STREAM else self._stream(stream)
        self._add(Op.FREE, thread, block, where)
        self._live.remove(block)
        self._in_use -= self._sizes[block]

    def free_all(self, *, thread: int = 0) -> None:
        """What is still in use, in the order of its allocation."""
        for block in sorted(self._live):
            self.free(block, thread=thread)

    def touch(self, block: int, stream: int = 0, *, thread: int = 0) -> None:
        if block not in self._live:
            raise ValueError(f"block {block} is written, but not in use")
        self._add(Op.TOUCH, thread, block, self._stream(stream))

    def kernel(self, nanoseconds: int, stream: int = 0, *, thread: int = 0) -> None:
        if not 0 <= nanoseconds <= 1_000_000_000_000:
            raise ValueError(f"a kernel of {nanoseconds} ns; it may last 0 to 10^12")
        self._add(Op.KERNEL, thread, nanoseconds, self._stream(stream))

    def record(self, event: int, stream: int = 0, *, thread: int = 0) -> None:
        self._add(Op.RECORD, thread, self._event(event), self._stream(stream))

    def wait(self, event: int, stream: int = 0, *, thread: int = 0) -> None:
        self._add(Op.WAIT, thread, self._event(event), self._stream(stream))

    def wait_for_event(self, event: int, *, thread: int = 0) -> None:
        self._add(Op.WAIT_FOR_EVENT, thread, self._event(event), 0)

    def wait_for_stream(self, stream: int = 0, *, thread: int = 0) -> None:
        self._add(Op.WAIT_FOR_STREAM, thread, 0, self._stream(stream))

    def wait_for_device(self, *, thread: int = 0) -> None:
        self._add(Op.WAIT_FOR_DEVICE, thread, 0, 0)

    def lock(self, *, thread: int = 0) -> None:
        self._add(Op.LOCK, thread, 0, 0)

    def unlock(self, *, thread: int = 0) -> None:
        self._add(Op.UNLOCK, thread, 0, 0)

    def section(self, name: str, *, threads: int = 1) -> None:
        """For threads 0 up to `threads`; the program must have no others."""
        number = self.sections.index(name)
        for thread in range(threads):
            self._add(Op.SECTION, thread, number, 0)

    @property
    def live(self) -> frozenset[int]:
        return frozenset(self._live)

    def size(self, block: int) -> int:
        return self._sizes[block]

    def build(self) -> Program:
        """Raises ValueError where a block is still in use: free_all() ends a program."""
        if self._live:
            raise ValueError(f"{len(self._live)} blocks are never freed")
        return Program(
            self.name,
            self._ops,
            self._threads,
            self._what,
            self._where,
            self._sizes,
            self._streams,
            self._events,
            self._thread_count,
            self._peak,
            self.sections,
            self.in_turns,
        )

    def _add(self, op: Op, thread: int, what: int, where: int) -> None:
        if not 0 <= thread < MOST_THREADS:
            raise ValueError(f"thread {thread}; it may be 0 to {MOST_THREADS - 1}")
        self._ops.append(op)
        self._threads.append(thread)
        self._what.append(what)
        self._where.append(where)
        self._thread_count = max(self._thread_count, thread + 1)

    def _stream(self, stream: int) -> int:
        if not 0 <= stream < 1 << 20:
            raise ValueError(f"stream {stream}; it may be 0 to {(1 << 20) - 1}")
        self._streams = max(self._streams, stream + 1)
        return stream

    def _event(self, event: int) -> int:
        if not 0 <= event < 1 << 24:
            raise ValueError(f"event {event}; it may be 0 to {(1 << 24) - 1}")
        self._events = max(self._events, event + 1)
        return event
