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
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

import msgspec

import vramkit
from vramkit import Pool
from vramkit.driver import Device, Driver, Stream
from vramkit.lab import program as programs
from vramkit.lab.player import play
from vramkit.lab.program import ProgramBuilder

KIB = 1 << 10
MIB = 1 << 20

ROUNDS = 5
LIVE_BLOCKS = 64  # of a stream, as in native/allocators_sequences.h
STEPS = 100  # of a stream in a round, unless told otherwise
LONGEST_LIFE = 200  # steps, in mixed programs

Handles = Literal["own", "raw", "raw_plain_free"]
HANDLES: tuple[Handles, ...] = ("own", "raw", "raw_plain_free")

CARD_GIB = 140
WORK_NS = 1000  # of the kernel behind each allocation, with --work-every
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
    make_round: Callable[[Program, int, int], programs.Program]
    least: int = 0
    most: int = 0

    @property
    def streams(self) -> int:
        return self.threads * self.streams_a_thread


def pairs(program: Program, seed: int, steps: int) -> programs.Program:
    """Every stream has 64 blocks; a step replaces a random one of them."""
    generator = random.Random(seed)
    builder = ProgramBuilder(program.name, in_turns=program.threads > 1)
    blocks: dict[tuple[int, int], int] = {}

    def allocate(stream: int, slot: int) -> None:
        size = log_uniform(generator, program.least, program.most)
        thread = stream // program.streams_a_thread
        blocks[stream, slot] = builder.allocate(size, stream, thread=thread)

    for slot in range(LIVE_BLOCKS):
        for stream in range(program.streams):
            allocate(stream, slot)
    for _ in range(steps * program.streams):
        stream, slot = generator.randrange(program.streams), generator.randrange(LIVE_BLOCKS)
        builder.free(blocks[stream, slot], thread=stream // program.streams_a_thread)
        allocate(stream, slot)
    for (stream, _), block in blocks.items():
        builder.free(block, thread=stream // program.streams_a_thread)
    return builder.build()


def mixed(program: Program, seed: int, steps: int) -> programs.Program:
    """Every stream allocates a block in each step, for a life of 1 to 200 steps (log-uniform)."""
    generator = random.Random(seed)
    builder = ProgramBuilder(program.name, in_turns=program.threads > 1)
    ends: dict[tuple[int, int], list[int]] = {}  # blocks by stream and step
    for step in range(steps):
        for stream in range(program.streams):
            thread = stream // program.streams_a_thread
            for block in ends.pop((stream, step), []):
                builder.free(block, thread=thread)
            block = builder.allocate(mixed_size(generator), stream, thread=thread)
            life = log_uniform(generator, 1, LONGEST_LIFE)
            ends.setdefault((stream, step + life), []).append(block)
    for (stream, _), left in ends.items():
        for block in left:
            builder.free(block, thread=stream // program.streams_a_thread)
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


class Streams:
    """The pool as an allocator, with streams of vramkit, which are those of the player; or with as
    many of another library, which it destroys without a word to the pool."""

    def __init__(self, pool: Pool, handles: Handles, work_every: int | None) -> None:
        # With nothing between, the native player uses the pool itself.
        self.resource = pool if handles == "own" and work_every is None else None
        self._pool = pool
        self._handles = handles
        self._work_every = work_every
        self._calls = StreamCalls(pool.device.driver)
        self._raw: dict[Stream, Stream] = {}
        self._created: list[int] = []
        self._launched = 0

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *ending: object) -> None:
        for handle in self._created:
            self._calls.destroy(handle)

    def allocate(self, size: int, stream: Stream) -> object:
        on = self._stream(stream)
        address = self._pool.malloc(size, on)
        if self._work_every is not None:
            self._work(on, self._work_every)
        return address

    def free(self, handle: object, size: int, stream: Stream) -> None:
        assert isinstance(handle, int)
        if self._handles == "raw":
            self._pool.free(handle, stream=self._stream(stream))
        else:
            self._pool.free(handle)

    def address(self, handle: object) -> int:
        assert isinstance(handle, int)
        return handle

    def held(self) -> int:
        return self._pool.reserved_bytes

    def _work(self, stream: Stream, every: int) -> None:
        """A short kernel; after `every` of them the host waits for the card."""
        self._pool.device.kernels.spin(WORK_NS, stream=stream)
        self._launched += 1
        if self._launched % every == 0:
            self._pool.device.synchronize()

    def _stream(self, stream: Stream) -> Stream:
        if self._handles == "own":
            return stream
        if stream not in self._raw:
            self._created.append(self._calls.create())
            self._raw[stream] = Stream.from_handle(self._pool.device, self._created[-1])
        return self._raw[stream]


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
            made = program.make_round(program, number, steps)
            in_use = max(in_use, made.peak_in_use)
            with Streams(pool, handles, work_every) as streams:
                play(made, streams, device)
        held = pool.stats().peak_reserved
    most = bound(in_use, threads, program.streams)
    return Churned(program.name, handles, threads, program.streams, in_use, held, most)


def number(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= 1 << 20:
        raise ArgumentTypeError(f"{text!r}; it may be a number from 1 to 2^20")
    return value


def simulated_card(gib: int) -> Device:
    """A fresh simulated GPU that keeps sizes and times only."""
    driver = vramkit.driver.open("sim")
    assert driver.sim is not None
    driver.sim.reset(data=False, checker=False, capacity=f"{gib}GiB")
    return driver.device()


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
    parser.add_argument("--steps", type=number, default=STEPS, help="of a stream in a round")
    parser.add_argument(
        "--work-every",
        type=number,
        metavar="N",
        help="a short kernel behind each malloc; the host waits after N of them",
    )
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
