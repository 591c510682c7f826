"""The four phases, and the extreme cases, as programs of one thread on one stream.

Phases 1, 3 and 5 are 100 allocations, timed; then they are freed. What follows at once is the same
again, round after round. Phases 2 and 4 are rounds of blocks of all sizes that come and go, and 200
of them stay.
"""

from __future__ import annotations

from array import array
from typing import Literal

from vramkit.lab.fragmentation.sequences import (
    CHURN_BLOCKS,
    CHURN_SEED,
    LARGEST,
    ROUNDS_BEFORE_FIFTH,
    ROUNDS_BEFORE_THIRD,
    SMALLEST,
    STAYING,
    Generator,
    timed_sizes,
)
from vramkit.lab.program import OWN_STREAM, Op, Program, ProgramBuilder

Arm = Literal["cold", "warm", "grown", "skipped"]
ARMS: dict[Arm, str] = {
    "cold": "a new allocator, as in the study",
    "warm": "with rounds of the timed phase before it",
    "grown": "with one block of the peak's size before it, so that the memory is there",
    "skipped": "without the mixed phases",
}
AGAIN = 20
"""Rounds of the timed phase that follow on the first, and that warm up."""
PHASES = (1, 3, 5)
SECTIONS = (
    "rest",
    *(f"{name}_{phase}" for phase in PHASES for name in ("phase", "again")),
    "mix_2",
    "mix_4",
)
EARLY_AND_LATE = ("rest", "early", "late")


def phases_program(arm: Arm, *, touch: bool, rounds: float = 1.0) -> Program:
    """`rounds`: of the mixed phases, as a part of the study's."""
    builder = ProgramBuilder(f"phases {arm}", SECTIONS)
    churn = Churn(builder)
    builder.section("rest")
    if arm == "warm":
        for _ in range(AGAIN):
            _timed_round(builder, "rest", touch=touch)
    if arm == "grown":
        builder.free(builder.allocate(peak_of_phases()))
    mixed = {
        3: ("mix_2", round(ROUNDS_BEFORE_THIRD * rounds)),
        5: ("mix_4", round(ROUNDS_BEFORE_FIFTH * rounds)),
    }
    for phase in PHASES:
        if phase in mixed and arm != "skipped":
            section, count = mixed[phase]
            builder.section(section)
            churn.run(count)
        _timed_round(builder, f"phase_{phase}", touch=touch)
        for _ in range(AGAIN):
            _timed_round(builder, f"again_{phase}", touch=touch)
    builder.free_all()
    return builder.build()


def peak_of_phases() -> int:
    """Of the blocks of a timed phase and those that a mixed round may have at once."""
    random = Generator(CHURN_SEED)
    mixed = [random.log_uniform(SMALLEST, LARGEST) for _ in range(STAYING + CHURN_BLOCKS)]
    return sum(timed_sizes()) + sum(mixed)


def _timed_round(builder: ProgramBuilder, section: str, *, touch: bool) -> None:
    builder.section(section)
    blocks = []
    for size in timed_sizes():
        block = builder.allocate(size)
        if touch:
            builder.touch(block)
        blocks.append(block)
    if touch:
        builder.wait_for_stream()
    builder.section("rest")
    for block in blocks:
        builder.free(block)


class Churn:
    """Blocks of all sizes that come and go; some stay."""

    def __init__(self, builder: ProgramBuilder, least: int = SMALLEST, most: int = LARGEST) -> None:
        self._builder = builder
        self._random = Generator(CHURN_SEED)
        self._live: list[int] = []
        self._sizes = least, most

    def run(self, rounds: int) -> None:
        random, live = self._random, self._live
        for _ in range(rounds):
            for _ in range(CHURN_BLOCKS):
                live.append(self._builder.allocate(random.log_uniform(*self._sizes)))
            while len(live) > STAYING:
                place = random.below(len(live))
                live[place], live[-1] = live[-1], live[place]
                self._builder.free(live.pop())


SIZE_RANGE = (4096, 10_000 * 4096)
SIZE_ROUNDS = 150


def size_range_program(rounds: float = 1.0) -> Program:
    """Sizes that differ by a factor of 10,000."""
    return _long("size_range", max(10, round(SIZE_ROUNDS * rounds)), *SIZE_RANGE)


def long_run_program(rounds: int) -> Program:
    return _long("long_run", rounds, SMALLEST, LARGEST)


def _long(name: str, rounds: int, least: int, most: int) -> Program:
    """Early are the second tenth of the rounds, late the last one: the first one is cold."""
    builder = ProgramBuilder(name, EARLY_AND_LATE)
    churn = Churn(builder, least, most)
    tenth = max(1, rounds // 10)
    builder.section("rest")
    churn.run(tenth)
    builder.section("early")
    churn.run(tenth)
    builder.section("rest")
    churn.run(rounds - 3 * tenth)
    builder.section("late")
    churn.run(tenth)
    builder.section("rest")
    builder.free_all()
    return builder.build()


SMALL_SIZES = (2048, 3072, 4096, 6144, 8192)


def small_blocks_program(count: int) -> Program:
    """`count` blocks of a few KiB in use at once; every second one is freed and allocated again, in
    another size of them.

    Made without a builder, which would take longer than the allocators. Early is the allocation of
    all, late that of the second half.
    """
    half = count // 2
    first = [SMALL_SIZES[block % 5] for block in range(count)]
    again = [SMALL_SIZES[(block + 3) % 5] for block in range(half)]
    steps: list[tuple[int, range | list[int]]] = [
        (Op.SECTION, [EARLY_AND_LATE.index("early")]),
        (Op.ALLOCATE, range(count)),
        (Op.SECTION, [EARLY_AND_LATE.index("rest")]),
        (Op.FREE, range(0, 2 * half, 2)),
        (Op.SECTION, [EARLY_AND_LATE.index("late")]),
        (Op.ALLOCATE, range(count, count + half)),
        (Op.SECTION, [EARLY_AND_LATE.index("rest")]),
        (Op.FREE, [*range(1, 2 * half, 2), *range(2 * half, count + half)]),
    ]
    ops, what, where = array("B"), array("q"), array("i")
    for op, numbers in steps:
        ops.extend(array("B", [op]) * len(numbers))
        what.extend(numbers)
        where.extend(array("i", [OWN_STREAM if op == Op.FREE else 0]) * len(numbers))
    freed = sum(first[0 : 2 * half : 2])
    return Program(
        "small_blocks",
        ops,
        array("H", [0]) * len(ops),
        what,
        where,
        array("q", first + again),
        stream_count=1,
        event_count=0,
        thread_count=1,
        peak_in_use=max(sum(first), sum(first) - freed + sum(again)),
        sections=EARLY_AND_LATE,
    )
