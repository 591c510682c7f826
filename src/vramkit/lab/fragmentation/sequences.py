"""Sizes and counts of the phases.

They are those of benchmarks/native/allocators_phases.h: a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

MASK = (1 << 64) - 1
SMALLEST = 256
LARGEST = 64 << 20
TIMED_SMALLEST = 4096
"""Of the blocks of a timed phase, which go up to LARGEST too."""
TIMED_BLOCKS = 100
CHURN_BLOCKS = 100
"""Allocations of a mixed round."""
STAYING = 200
"""Blocks that a mixed round leaves in use."""
ROUNDS_BEFORE_THIRD = 50
ROUNDS_BEFORE_FIFTH = 100
CHURN_SEED = 101
TIMED_SEED = 102
FILLING_SEED = 7
FILLING_SMALLEST = 2 << 20


class Generator:
    """SplitMix64: the same numbers in C++ and here."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        return mixed ^ (mixed >> 31)

    def fraction(self) -> float:
        return (self.next() >> 11) * 2.0**-53

    def below(self, bound: int) -> int:
        return int(self.fraction() * bound)

    def uniform(self, least: int, most: int) -> int:
        return least + self.below(most - least + 1)

    def log_uniform(self, least: int, most: int) -> int:
        low, high = math.log(least), math.log(most)
        return int(math.exp(low + self.fraction() * (high - low)))


def timed_sizes() -> list[int]:
    """Of the blocks of a timed phase: the same each time."""
    random = Generator(TIMED_SEED)
    return [random.log_uniform(TIMED_SMALLEST, LARGEST) for _ in range(TIMED_BLOCKS)]


def filling_sizes(total: int) -> Iterator[int]:
    """Of blocks that fill a card: 2 to 64 MiB, uniform; the last one passes the total."""
    random, filled = Generator(FILLING_SEED), 0
    while filled < total:
        size = random.uniform(FILLING_SMALLEST, LARGEST)
        filled += size
        yield size
