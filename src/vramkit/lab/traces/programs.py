"""Turns a recorded run into a program that a player goes through.

Nobody recorded how long kernels take, and without work on the streams every free would be done with
at once: an allocator that hands memory from stream to stream would look better than it is. So
kernels stand in, by these rules:

- a launch of a recording lasts an equal part of the time from the first launch of its stream that
  was not known to be complete to the moment when the host knew that it was. That is at most too
  long: the host may have looked late. A launch that nobody waited for lasts `kernel_ns`;
- other traces have a kernel of `kernel_ns` behind each allocation, on its stream, and the host is
  never more than MOST_AHEAD of them ahead of a stream, as the driver's queues have it.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from vramkit.lab.program import OWN_STREAM, Program, ProgramBuilder
from vramkit.lab.traces.trace import Kind, Trace

KERNEL_NS = 20_000
"""An allocation or a free each 10 us is faster than most PyTorch programs are."""
MOST_AHEAD = 1024
LONGEST_KERNEL_NS = 10**12
PACE_NS = 100_000
"""The host waits for the time of the recording where it is this far ahead of it."""
LONGEST_PAUSE_NS = 10**9


def as_program(trace: Trace, *, kernel_ns: int = KERNEL_NS, paced: bool = False) -> Program:
    """The same blocks, threads and streams, in the same order. What was never freed is freed at the
    end.

    `kernel_ns` of 0: without kernels. `paced`: with the pauses of the host between its calls, of a
    second at most, where the trace has times. The host then waits for kernels on a stream of their
    own, the last one.
    """
    builder = ProgramBuilder(trace.name, in_turns=trace.thread_count > 1)
    durations = launch_durations(trace, kernel_ns) if trace.has_work and kernel_ns else {}
    ahead = _Ahead(builder) if not trace.has_work and kernel_ns else None
    pace = _Pace(builder, trace) if paced and trace.times else None
    recorded: set[int] = set()
    columns = zip(trace.kinds, trace.threads, trace.what, trace.streams, strict=True)
    for index, (kind, thread, what, stream) in enumerate(columns):
        if pace is not None:
            pace.before(index, kind, thread)
        match kind:
            case Kind.ALLOCATE:
                builder.allocate(trace.sizes[what], stream, thread=thread)
                if ahead is not None:
                    ahead.kernel(kernel_ns, stream, thread)
            case Kind.FREE:
                builder.free(what, stream, thread=thread)
            case Kind.LAUNCH:
                if index in durations:
                    builder.kernel(durations[index], stream, thread=thread)
            case Kind.RECORD:
                builder.record(what, stream, thread=thread)
                recorded.add(what)
            case Kind.WAIT if what in recorded:  # else there is nothing to wait for
                builder.wait(what, stream, thread=thread)
            case Kind.EVENT_DONE if what in recorded:
                builder.wait_for_event(what, thread=thread)
            case Kind.STREAM_DONE:
                builder.wait_for_stream(stream, thread=thread)
            case Kind.DEVICE_DONE:
                builder.wait_for_device(thread=thread)
    builder.free_all()
    return builder.build()


@dataclass
class _Ahead:
    """Kernels behind allocations, and waits that bound how many are in a stream's queue."""

    builder: ProgramBuilder
    counts: dict[int, int] = field(default_factory=dict)

    def kernel(self, nanoseconds: int, stream: int, thread: int) -> None:
        self.builder.kernel(nanoseconds, stream, thread=thread)
        count = self.counts[stream] = self.counts.get(stream, 0) + 1
        half, rest = divmod(count, MOST_AHEAD // 2)
        if rest == 0:
            # Two events for each stream: the one that is recorded now, and the one before.
            self.builder.record(2 * stream + half % 2, stream, thread=thread)
            if half > 1:
                self.builder.wait_for_event(2 * stream + (half - 1) % 2, thread=thread)


class _Pace:
    """The host's time: it waits for a kernel that lasts as long as it did something else."""

    def __init__(self, builder: ProgramBuilder, trace: Trace) -> None:
        self._builder = builder
        self._times = trace.times
        self._stream = trace.stream_count
        self._at = trace.times[0]

    def before(self, index: int, kind: int, thread: int) -> None:
        now = self._times[index]
        if kind in (Kind.EVENT_DONE, Kind.STREAM_DONE, Kind.DEVICE_DONE):
            self._at = max(self._at, now)  # the wait itself takes this time
        elif now - self._at >= PACE_NS:
            pause = min(now - self._at, LONGEST_PAUSE_NS)
            self._builder.kernel(pause, self._stream, thread=thread)
            self._builder.wait_for_stream(self._stream, thread=thread)
            self._at = now


# How long launches take


_Mark = tuple[int, int, int]
"""A point of a stream: the stream, and so many of its launches and of its waits before it."""


@dataclass
class _Queue:
    """Launches of a stream that are not known to be complete, and what its work waited for."""

    launches: list[int] = field(default_factory=list)
    """Events of the trace."""
    complete: int = 0
    """So many of them are."""
    waits: list[_Mark] = field(default_factory=list)
    """What the stream waited for, in the order of its calls."""
    waited: int = 0
    """So many of them are known to be over."""

    @property
    def mark(self) -> tuple[int, int]:
        return len(self.launches), len(self.waits)


def launch_durations(trace: Trace, unknown_ns: int) -> dict[int, int]:
    """Nanoseconds of the kernels of each LAUNCH, by its index."""
    queues: dict[int, _Queue] = {}
    marks: dict[int, _Mark] = {}  # of events
    durations: dict[int, int] = {}
    busy: set[int] = set()

    def completed(mark: _Mark, at: int) -> None:
        """What is before that point of the stream, and what it waited for."""
        left = [mark]
        while left:
            stream, count, waits = left.pop()
            queue = queues.get(stream)
            if queue is None:
                continue
            if waits > queue.waited:
                left += queue.waits[queue.waited : waits]
                queue.waited = waits
            known = queue.launches[queue.complete : count]
            if known:
                queue.complete = count
                if count == len(queue.launches):
                    busy.discard(stream)
                _share(trace, known, at, durations)

    columns = zip(trace.kinds, trace.what, trace.streams, trace.times, strict=True)
    for index, (kind, what, stream, at) in enumerate(columns):
        match kind:
            case Kind.LAUNCH:
                queues.setdefault(stream, _Queue()).launches.append(index)
                busy.add(stream)
                durations[index] = min(unknown_ns * what, LONGEST_KERNEL_NS)
            case Kind.RECORD:
                queue = queues.setdefault(stream, _Queue())
                marks[what] = stream, *queue.mark
            case Kind.WAIT if what in marks and marks[what][0] != stream:
                queue = queues.setdefault(stream, _Queue())
                queue.waits.append(marks[what])
            case Kind.EVENT_DONE if what in marks:
                completed(marks[what], at)
            case Kind.STREAM_DONE if stream in queues:
                completed((stream, *queues[stream].mark), at)
            case Kind.DEVICE_DONE:
                for number in sorted(busy):
                    completed((number, *queues[number].mark), at)
    return durations


def _share(trace: Trace, launches: Sequence[int], at: int, durations: dict[int, int]) -> None:
    """The time up to `at` among launches of a stream that ended then at the latest."""
    span = max(at - trace.times[launches[0]], 0)
    total = sum(trace.what[index] for index in launches)
    for index in launches:
        durations[index] = min(span * trace.what[index] // total, LONGEST_KERNEL_NS)


# Other threads and streams


def dealt(
    trace: Trace,
    *,
    streams: int | None = None,
    threads: int | None = None,
    turn: int | None = None,
    seed: int = 1,
) -> Trace:
    """The blocks of a trace, dealt at random over that many streams and threads.

    A block is freed on its own stream, and by the thread that allocated it. With `turn` the threads
    take turns of so many events instead, whoever allocated the block. What was recorded of work is
    left out, since it belongs to other streams.
    """
    own = array("i", _deal(trace, streams, seed)) if streams else None
    by = array("H", _deal(trace, threads, seed + 1)) if threads else None
    kinds, thread_of, what, stream_of, times = (
        array("B"),
        array("H"),
        array("q"),
        array("i"),
        array("q"),
    )
    for index, kind in enumerate(trace.kinds):
        if kind > Kind.FREE:
            continue
        block, stream, thread = trace.what[index], trace.streams[index], trace.threads[index]
        if own is not None:
            stream = own[block] if kind == Kind.ALLOCATE else OWN_STREAM
        if threads and turn:
            thread = len(kinds) // turn % threads
        elif by is not None:
            thread = by[block]
        kinds.append(kind)
        thread_of.append(thread)
        what.append(block)
        stream_of.append(stream)
        if trace.times:
            times.append(trace.times[index])
    return replace(
        trace,
        kinds=kinds,
        threads=thread_of,
        what=what,
        streams=stream_of,
        times=times,
        stream_count=streams or trace.stream_count,
        event_count=0,
        thread_count=threads or trace.thread_count,
        has_work=False,
    )


def _deal(trace: Trace, count: int, seed: int) -> Iterator[int]:
    """For each block one of `count`."""
    choose = random.Random(seed).randrange
    return (choose(count) for _ in range(trace.allocations))
