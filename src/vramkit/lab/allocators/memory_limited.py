"""The memory-limited case: a card of 4 GiB; the program needs 3.5 at times and 1 on average."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from vramkit.lab.program import Op, Program, ProgramBuilder

MIB = 1 << 20
GIB = 1 << 30
NAME = "memory_limited"
CARD = 4 * GIB
PEAK = 7 * GIB // 2
AVERAGE = GIB

RESIDENT = [64 * MIB] * 5
"""What stays all the time."""
CYCLES = 8
QUIET_STEPS = 40
"""Of a cycle, before the peak: temporary blocks come and go."""
TEMPORARIES = 6
"""That are in use at once."""
SMALLEST, LARGEST = 8 * MIB, 112 * MIB
QUIET_NS = 500_000
"""Kernel of a quiet step."""
PEAK_NS = 500_000
"""Kernel of each block of the peak."""
PEAK_BLOCK = 256 * MIB


@dataclass(frozen=True)
class Sizing:
    """An arm: the size that an allocator is given which must be given one."""

    arm: str
    size: int | None
    words: str


SIZINGS = (
    Sizing("default", None, "the size that its makers recommend, or none"),
    Sizing("too small", 2 * GIB, "2 GiB: the average and as much again"),
    Sizing("right", PEAK + 128 * MIB, "3.6 GiB: the peak and a little for what lies between"),
    Sizing("too large", 6 * GIB, "6 GiB: more than the card has"),
)


def sizing_of(arm: str) -> Sizing:
    return next(each for each in SIZINGS if each.arm == arm)


def memory_limited_program(seed: int) -> Program:
    """Quiet steps with temporaries of many sizes, then a short peak; again and again."""
    builder = ProgramBuilder(NAME, ("all",))
    chance = Random(seed)

    resident = [builder.allocate(size) for size in RESIDENT]
    for block in resident:
        builder.touch(block)
    in_use = sum(RESIDENT)
    for _ in range(CYCLES):
        live: list[int] = []
        for _ in range(QUIET_STEPS):
            if len(live) == TEMPORARIES:
                builder.free(live.pop(chance.randrange(len(live))))
            block = builder.allocate(chance.randint(SMALLEST, LARGEST))
            builder.touch(block)
            builder.kernel(QUIET_NS)
            live.append(block)
        for block in live:
            builder.free(block)
        left, tall = PEAK - in_use, []
        while left > 0:
            size = min(PEAK_BLOCK, left)
            tall.append(builder.allocate(size))
            builder.touch(tall[-1])
            builder.kernel(PEAK_NS)
            left -= size
        for block in tall:
            builder.free(block)
        builder.wait_for_stream()
    builder.free_all()
    return builder.build()


def average_in_use(program: Program) -> float:
    """Over the time of the kernels of known length."""
    in_use, area, time = 0, 0.0, 0
    for op, what in zip(program.ops, program.what, strict=True):
        if op == Op.ALLOCATE:
            in_use += program.sizes[what]
        elif op == Op.FREE:
            in_use -= program.sizes[what]
        elif op == Op.KERNEL:
            area += in_use * what
            time += what
    return area / time
