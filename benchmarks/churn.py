"""Programs whose threads and streams come and go: how much memory the pool holds for them.

    python benchmarks/churn.py
    python benchmarks/churn.py 'mixed/*' --handles raw

In each round of a program new threads with new streams allocate and free; then all of them end.
Rounds use one pool, on the simulated GPU. The goal is the bound that tests assert.
"""

from __future__ import annotations

import ctypes
import math
import random
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

import msgspec
from held import number
from replay import Player, simulated_card
from traces import Trace, TraceBuilder

from vramkit import Pool
from vramkit.driver import Device, Driver, Stream

KIB = 1 << 10
MIB = 1 << 20

ROUNDS = 5
LIVE_BLOCKS = 64  # of a stream, as in native/allocators_sequences.h
STEPS = 100  # of a stream in a round, unless told otherwise
LONGEST_LIFE = 200  # steps, in mixed programs

Handles = Literal["own", "raw", "raw_plain_free"]
HANDLES: tuple[Handles, ...] = ("own", "raw", "raw_plain_free")

CARD_GIB = 140
BOUND_RATIO = 1.25
BOUND_BYTES_EACH = 4 * MIB  # a live thread, and a live stream


def bound(in_use: int, threads: int, streams: int) -> int:
    """What a pool may hold at most: the goal, whatever the number of those that have ended."""
    return int(BOUND_RATIO * in_use) + BOUND_BYTES_EACH * (threads + streams)


# Sizes


def log_uniform(generator: random.Random, least: int, most: int) -> int:
    return int(math.exp(generator.uniform(math.log(least), math.log(most))))


def mixed_size(generator: random.Random) -> int:
    """70 % up to 8 KiB, 25 % from 32 KiB to 4 MiB, 5 % from 8 to 64 MiB."""
    kind = generator.random()
    if kind < 0.7:
        return log_uniform(generator, 256, 8 * KIB)
    if kind < 0.95:
        return log_uniform(generator, 32 * KIB, 4 * MIB)
    return log_uniform(generator, 8 * MIB, 64 * MIB)


# Programs


@dataclass(frozen=True)
class Program:
    """Threads with streams of their own, and what they allocate in a round."""

    name: str
    threads: int
    streams_a_thread: int
    make_round: Callable[[Program, int, int], Trace]
    least: int = 0
    most: int = 0

    @property
    def streams(self) -> int:
        return self.threads * self.streams_a_thread


def pairs(program: Program, seed: int, steps: int) -> Trace:
    """Every stream has 64 blocks; a step replaces a random one of them."""
    generator = random.Random(seed)
    builder = TraceBuilder(program.name)

    def allocate(stream: int, slot: int) -> None:
        size = log_uniform(generator, program.least, program.most)
        builder.allocate((stream, slot), size, stream)

    for slot in range(LIVE_BLOCKS):
        for stream in range(program.streams):
            allocate(stream, slot)
    for _ in range(steps * program.streams):
        stream, slot = generator.randrange(program.streams), generator.randrange(LIVE_BLOCKS)
        builder.free((stream, slot))
        allocate(stream, slot)
    builder.free_all()
    return builder.build()


def mixed(program: Program, seed: int, steps: int) -> Trace:
    """Every stream allocates a block in each step, for a life of 1 to 200 steps (log-uniform)."""
    generator = random.Random(seed)
    builder = TraceBuilder(program.name)
    ends: dict[tuple[int, int], list[tuple[int, int]]] = {}  # blocks by stream and step
    for step in range(steps):
        for stream in range(program.streams):
            for block in ends.pop((stream, step), []):
                builder.free(block)
            builder.allocate((stream, step), mixed_size(generator), stream)
            life = log_uniform(generator, 1, LONGEST_LIFE)
            ends.setdefault((stream, step + life), []).append((stream, step))
    builder.free_all()
    return builder.build()


PROGRAMS = [
    Program("pairs_small/16", 16, 1, pairs, 256, MIB),
    Program("pairs_large/16", 16, 1, pairs, 4 * KIB, 64 * MIB),
    Program("mixed/8x4", 8, 4, mixed),
    Program("pairs_small/1", 1, 1, pairs, 256, MIB),
    Program("pairs_large/1", 1, 1, pairs, 4 * KIB, 64 * MIB),
    Program("mixed/1x4", 1, 4, mixed),
]


# Streams of a round


@contextmanager
def streams_of_a_round(device: Device, count: int, handles: Handles) -> Iterator[list[Stream]]:
    """Streams of vramkit; or those of another library, destroyed without a word to the pool."""
    if handles == "own":
        made = [device.stream() for _ in range(count)]
        try:
            yield made
        finally:
            for stream in made:
                stream.close()
        return
    calls = StreamCalls(device.driver)
    created = [calls.create() for _ in range(count)]
    try:
        yield [Stream.from_handle(device, handle) for handle in created]
    finally:
        for handle in created:
            calls.destroy(handle)


class StreamCalls:
    """Streams by the driver's own calls."""

    def __init__(self, driver: Driver) -> None:
        self._library = ctypes.CDLL(driver.path)

    def create(self) -> int:
        handle = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(1))  # non-blocking
        assert handle.value is not None
        return handle.value

    def destroy(self, handle: int) -> None:
        self._call("cuStreamDestroy_v2", ctypes.c_void_p(handle))

    def _call(self, symbol: str, *values: object) -> None:
        result = getattr(self._library, symbol)(*values)
        if result != 0:
            raise RuntimeError(f"{symbol} failed: {result}")


# The run


class Churned(msgspec.Struct, frozen=True):
    program: str
    handles: Handles
    threads: int
    """Live at a time; as many streams as `streams`."""
    streams: int
    peak_in_use: int
    peak_held: int
    bound: int


def run(
    program: Program,
    device: Device,
    handles: Handles,
    *,
    steps: int = STEPS,
    work_every: int | None = None,
) -> Churned:
    """All rounds on one pool without a background thread."""
    in_use = 0
    threads = program.threads
    with Pool(device=device, background=False) as pool:
        for number in range(ROUNDS):
            trace = program.make_round(program, number, steps)
            in_use = max(in_use, trace.peak_in_use)
            thread_of = [stream // program.streams_a_thread for stream in trace.streams]
            with streams_of_a_round(device, program.streams, handles) as streams:
                player = Player(
                    trace,
                    pool,
                    streams,
                    free_with_stream=handles == "raw",
                    work_every=work_every,
                )
                player.play_on_threads(thread_of, threads)
        held = pool.stats().peak_reserved
    most = bound(in_use, threads, program.streams)
    return Churned(program.name, handles, threads, program.streams, in_use, held, most)


def main(command: list[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    names = ", ".join(program.name for program in PROGRAMS)
    parser.add_argument("only", nargs="*", metavar="GLOB", help=f"which of {names}")
    parser.add_argument(
        "--handles",
        choices=HANDLES,
        action="append",
        help="streams of vramkit (own); raw handles whose blocks are freed with stream= (raw) or "
        "without it; default: all",
    )
    parser.add_argument("--steps", type=number(1), default=STEPS, help="of a stream in a round")
    parser.add_argument("--work-every", type=number(1), metavar="N", help="as in held.py")
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args(command)
    chosen = [
        program
        for program in PROGRAMS
        if not options.only or any(fnmatch(program.name, glob) for glob in options.only)
    ]
    if not chosen:
        parser.error(f"no program is called {' or '.join(options.only)}; there are {names}")
    if not options.json:
        print("| program | handles | threads | streams | in use, MiB | held, MiB | bound, MiB | |")
        print("|---|---|---:|---:|---:|---:|---:|---|")
    for program in chosen:
        for handles in options.handles or HANDLES:
            device = simulated_card(CARD_GIB)
            result = run(
                program, device, handles, steps=options.steps, work_every=options.work_every
            )
            print(msgspec.json.encode(result).decode() if options.json else row(result), flush=True)
    return 0


def row(result: Churned) -> str:
    sizes = (result.peak_in_use, result.peak_held, result.bound)
    mebibytes = " | ".join(f"{size / MIB:,.0f}" for size in sizes)
    verdict = "" if result.peak_held <= result.bound else "above the bound"
    return (
        f"| {result.program} | {result.handles} | {result.threads} | {result.streams} "
        f"| {mebibytes} | {verdict} |"
    )


if __name__ == "__main__":
    sys.exit(main())
