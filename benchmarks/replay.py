"""Replays traces on a pool: on one thread, or on several that take turns in the order of the trace.

Only allocations are replayed. Without `work_every` nothing runs on the streams, so the work of
other streams is always done when the pool asks.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from traces import Trace

import vramkit
from vramkit import Pool
from vramkit.driver import Device, Stream

GIB = 1 << 30
WORK_NS = 1000  # of the kernel behind each allocation, with work_every
EVENTS_AT_ONCE = 16  # whose time passes at once, with event_us


class Replayed(msgspec.Struct, frozen=True):
    """Sizes in bytes; figures of the simulated GPU, except `seconds`: real time of the replay."""

    trace: str
    events: int
    streams: int
    threads: int
    limit: int | None
    peak_in_use: int
    peak_held: int
    ratio: float
    """Held / in use."""
    remap_hits: int
    remapped_bytes: int
    growths: int
    driver_calls: int
    seconds: float


def dealt(trace: Trace, count: int, seed: int) -> list[int]:
    """For each block one of `count` streams or threads, at random."""
    choose = random.Random(seed).randrange
    return [choose(count) for _ in trace.sizes]


# The replay


class Player:
    """Does the events of one trace. What is in use after an error is freed by release()."""

    def __init__(
        self,
        trace: Trace,
        pool: Pool,
        streams: Sequence[Stream],
        stream_of: Sequence[int] | None = None,
        *,
        free_with_stream: bool = False,
        work_every: int | None = None,
        event_us: float = 0,
    ) -> None:
        self._events = trace.events
        self._sizes = trace.sizes
        self._pool = pool
        self._streams = [streams[index] for index in stream_of or trace.streams]
        self._addresses = [0] * len(trace.sizes)
        self._free_with_stream = free_with_stream
        self._malloc: Callable[[int, Stream], int] = (
            pool.malloc if work_every is None else with_work(pool, work_every)
        )
        if event_us:
            self._malloc = with_time(self._malloc, pool.device, event_us)

    def play(self, start: int, end: int) -> None:
        """The events from `start` up to `end`."""
        addresses, sizes, streams = self._addresses, self._sizes, self._streams
        malloc, free = self._malloc, self._pool.free
        for event in self._events[start:end]:
            if event >= 0:
                addresses[event] = malloc(sizes[event], streams[event])
            elif self._free_with_stream:
                free(addresses[~event], stream=streams[~event])
                addresses[~event] = 0
            else:
                free(addresses[~event])
                addresses[~event] = 0

    def play_all(self) -> None:
        self.play(0, len(self._events))

    def play_on_threads(self, thread_of: Sequence[int], count: int) -> None:
        """Each block is allocated and freed by its own thread."""
        self._share([owner(event, thread_of) for event in self._events], count)

    def play_in_turns(self, turn: int, count: int) -> None:
        """Threads take turns of so many events: most blocks that live longer than a turn are
        freed by another thread. PyTorch does so with its main thread and that of autograd."""
        self._share([index // turn % count for index in range(len(self._events))], count)

    def _share(self, owners: Sequence[int], count: int) -> None:
        """Each event on its thread. New threads, which end with the trace; one at a time runs, so
        that the order is that of the trace. The first error is raised here."""
        turns = [threading.Lock() for _ in range(count)]
        for turn in turns:
            turn.acquire()
        failures: list[BaseException] = []

        def work(thread: int) -> None:
            for start, end, following in shares[thread]:
                turns[thread].acquire()
                if failures:
                    return
                try:
                    self.play(start, end)
                except BaseException as error:
                    failures.append(error)
                    for other in range(count):  # all of them wait for their turn, or have ended
                        if other != thread:
                            turns[other].release()
                    return
                turns[following].release()

        shares = shared_out(owners, count)
        threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
        for thread in threads:
            thread.start()
        turns[owners[0]].release()
        for thread in threads:
            wait_for_its_end(thread)
        if failures:
            raise failures[0]

    def release(self) -> None:
        for block, address in enumerate(self._addresses):
            if address:
                self._addresses[block] = 0
                self._pool.free(address)


def wait_for_its_end(thread: threading.Thread) -> None:
    """Of the system's thread: a pool hears of it then, before Python 3.13 only after join()."""
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        os.sched_yield()


def with_work(pool: Pool, every: int) -> Callable[[int, Stream], int]:
    """A malloc with a short kernel behind it on its stream; after `every` of them the host waits
    for the card."""
    device = pool.device
    spin = device.kernels.spin
    launched = 0

    def malloc(size: int, stream: Stream) -> int:
        nonlocal launched
        address = pool.malloc(size, stream)
        spin(WORK_NS, stream=stream)
        launched += 1
        if launched % every == 0:
            device.synchronize()
        return address

    return malloc


def with_time(
    malloc: Callable[[int, Stream], int], device: Device, event_us: float
) -> Callable[[int, Stream], int]:
    """The same with simulated time between: a free and a malloc take `event_us` each."""
    sim = device.driver.sim
    assert sim is not None
    calls = 0

    def timed(size: int, stream: Stream) -> int:
        nonlocal calls
        calls += 1
        if calls % EVENTS_AT_ONCE == 0:
            sim.advance(2 * EVENTS_AT_ONCE * event_us * 1e-6)
        return malloc(size, stream)

    return timed


def owner(event: int, thread_of: Sequence[int]) -> int:
    return thread_of[event if event >= 0 else ~event]


def shared_out(owners: Sequence[int], count: int) -> list[list[tuple[int, int, int]]]:
    """For each thread its runs of events: start, end, and the thread whose turn is next."""
    shares: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
    start, current = 0, owners[0]
    for index, thread in enumerate(owners):
        if thread != current:
            shares[current].append((start, index, thread))
            start, current = index, thread
    shares[current].append((start, len(owners), current))
    return shares


# A simulated GPU and a pool for it


def simulated_card(gib: int) -> Device:
    """A fresh simulated GPU that keeps sizes and times only."""
    driver = vramkit.driver.open("sim")
    assert driver.sim is not None
    driver.sim.reset(data=False, checker=False, capacity=f"{gib}GiB")
    return driver.device()


def replay(
    trace: Trace,
    device: Device,
    *,
    limit: int | None = None,
    streams: int | None = None,
    threads: int = 1,
    turn: int | None = None,
    seed: int = 1,
    work_every: int | None = None,
    event_us: float = 0,
) -> Replayed:
    """Replays a trace on a pool of its own, without a background thread.

    With `streams` the blocks are dealt at random over that many, else they are on the streams of
    the trace. Over several threads they are dealt at random too, whatever their streams; with
    `turn` the threads take turns of so many events instead. With `event_us` simulated time passes:
    a pool spends a part of it on memory. Raises OutOfMemoryError if the trace does not come to its
    end.
    """
    sim = device.driver.sim
    assert sim is not None
    stream_of = None if streams is None else dealt(trace, streams, seed)
    count = trace.stream_count if streams is None else streams
    with ExitStack() as stack:
        pool = stack.enter_context(Pool(device=device, background=False, limit=limit))
        made = [stack.enter_context(device.stream()) for _ in range(count)]
        player = Player(trace, pool, made, stream_of, work_every=work_every, event_us=event_us)
        stack.callback(player.release)
        sim.reset_call_counts()
        start = time.perf_counter()
        if threads == 1:
            player.play_all()
        elif turn is not None:
            player.play_in_turns(turn, threads)
        else:
            player.play_on_threads(dealt(trace, threads, seed + 1), threads)
        seconds = time.perf_counter() - start
        calls = sum(n for call, n in sim.call_counts().items() if call.startswith("cu"))
        stats = pool.stats()
        return Replayed(
            trace=trace.name,
            events=len(trace.events),
            streams=count,
            threads=threads,
            limit=limit,
            peak_in_use=trace.peak_in_use,
            peak_held=stats.peak_reserved,
            ratio=round(stats.peak_reserved / trace.peak_in_use, 4),
            remap_hits=stats.remap_hits,
            remapped_bytes=stats.remapped_bytes,
            growths=stats.device_growths,
            driver_calls=calls,
            seconds=round(seconds, 3),
        )
