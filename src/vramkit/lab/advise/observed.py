"""What one recorded run says about a program, as the figures that advice is derived from."""

from __future__ import annotations

from typing import Literal

import msgspec

from vramkit.lab.traces.trace import Kind, Trace

Level = Literal["driver", "tensors"]
"""What the trace recorded: what the driver was asked for, or what a framework's allocator was."""


class Timing(msgspec.Struct, frozen=True):
    """When things happened, of a trace that says so."""

    seconds: float
    """From the first call to the last."""
    idle_seconds: float
    """Between the first launch and the last, in which no kernel was queued for certain: from the
    moment the host knew all to be complete to the next launch. It may have been longer; copies are
    not in a trace."""
    allocations: int
    """Calls that asked the driver for memory after something had been freed. Those before it take
    what any allocator has to take."""
    frees: int
    """Calls that gave memory back before another one asked for some."""
    waiting_frees: int
    """So many of them came while kernels may have been running: cuMemFree waits for those."""
    launches: int

    @property
    def idle_share(self) -> float:
        return self.idle_seconds / self.seconds if self.seconds > 0 else 0.0


class Observed(msgspec.Struct, frozen=True):
    """One process on one card. Sizes in bytes."""

    name: str
    level: Level
    allocations: int
    peak: int
    """Most that was in use at a time."""
    lasting: int
    """Least that was in use in the middle half of the run: weights, optimizer state, caches that
    stay. Never more than the peak."""
    held: int | None
    """Most that the program's own allocator held, where the trace tells."""
    timing: Timing | None

    @property
    def changing(self) -> int:
        """What comes and goes: activations, gradients, work space."""
        return self.peak - self.lasting


def observe(trace: Trace) -> Observed:
    return Observed(
        trace.name,
        "driver" if trace.has_work else "tensors",
        trace.allocations,
        trace.peak_in_use,
        lasting_bytes(trace),
        trace.held,
        timing_of(trace) if trace.has_work else None,
    )


def lasting_bytes(trace: Trace) -> int:
    """Of the allocations and frees, the first and the last quarter do not count: there a program
    starts and ends."""
    events = [
        (kind, block)
        for kind, block in zip(trace.kinds, trace.what, strict=True)
        if kind in (Kind.ALLOCATE, Kind.FREE)
    ]
    in_use, least = 0, trace.peak_in_use
    for index, (kind, block) in enumerate(events):
        size = trace.sizes[block]
        in_use += size if kind == Kind.ALLOCATE else -size
        if len(events) <= 4 * index < 3 * len(events):
            least = min(least, in_use)
    return least


def timing_of(trace: Trace) -> Timing:
    """Of a trace with times, launches and points where work completed."""
    launches = 0
    running: set[int] = set()  # streams with kernels that may not be complete
    recorded: dict[int, tuple[int, int]] = {}  # stream, and its launches so far, by event
    launched: dict[int, int] = {}  # launches, by stream
    idle = 0
    idle_since: int | None = None
    allocations = frees = waiting = 0
    # Since the last allocation.
    frees_since = waiting_since = 0
    for kind, what, stream, at in zip(
        trace.kinds, trace.what, trace.streams, trace.times, strict=True
    ):
        if kind == Kind.FREE:
            frees_since += 1
            waiting_since += bool(running)
        elif kind == Kind.ALLOCATE:
            frees, waiting = frees + frees_since, waiting + waiting_since
            frees_since = waiting_since = 0
            allocations += frees > 0
        if kind == Kind.LAUNCH:
            launches += what
            if idle_since is not None:
                idle += max(at - idle_since, 0)
                idle_since = None
            running.add(stream)
            launched[stream] = launched.get(stream, 0) + 1
            continue
        if kind == Kind.RECORD:
            recorded[what] = stream, launched.get(stream, 0)
        elif kind == Kind.EVENT_DONE and what in recorded:
            on, before = recorded[what]
            if launched.get(on, 0) == before:
                running.discard(on)
        elif kind == Kind.STREAM_DONE:
            running.discard(stream)
        elif kind == Kind.DEVICE_DONE:
            running.clear()
        if launched and not running and idle_since is None:
            idle_since = at
    passed = max(trace.times) - min(trace.times) if trace.times else 0
    return Timing(
        passed * 1e-9,
        idle * 1e-9,
        allocations,
        frees,
        waiting,
        launches,
    )
