"""The text of the kernel that hashes chunks, run as a card would run it."""

from __future__ import annotations

import struct

import pytest
from driver.ptx import Kernel, Memory
from hypothesis import given, settings
from hypothesis import strategies as some
from soak import rounds

SOURCE, TARGET = 0x1_0000_0000, 0x2_0000_0000
MASK = 2**64 - 1
SLOTS = 64


def mixed(x: int, shifts: tuple[int, int, int], factors: tuple[int, int]) -> int:
    for shift, factor in zip(shifts, factors, strict=False):
        x = (x ^ x >> shift) * factor & MASK
    return x ^ x >> shifts[2]


def reference(words: list[int]) -> tuple[int, int]:
    """The definition in native/swap/hash.h."""
    a = b = 0
    for number, word in enumerate(words, 1):
        step_a, step_b = number * 0x9E3779B97F4A7C15, number * 0xC2B2AE3D27D4EB4F
        a += mixed(word + step_a & MASK, (32, 32, 32), (0xD6E8FEB86659FD93,) * 2)
        b += mixed(word ^ step_b & MASK, (30, 27, 31), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
    return a & MASK, b & MASK


def hashed(words: list[int], blocks: int, threads: int, before: int = 0) -> tuple[int, int]:
    source = Memory(SOURCE, struct.pack(f"<{len(words)}Q", *words))
    sums = [before] * (2 * SLOTS)
    target = Memory(TARGET, struct.pack(f"<{2 * SLOTS}Q", *sums), writable=True)
    Kernel("vk_hash128").run([SOURCE, len(words), TARGET], [source, target], blocks, threads)
    after = struct.unpack(f"<{2 * SLOTS}Q", target.content)
    return (sum(after[::2]) - before * SLOTS) & MASK, (sum(after[1::2]) - before * SLOTS) & MASK


@settings(max_examples=rounds(15, 500))
@given(
    some.lists(some.tuples(some.integers(0, MASK), some.integers(0, MASK)), max_size=40),
    some.integers(1, 3),
    some.integers(1, 70),
    some.integers(0, MASK),
)
def test_any_words_in_any_shape(
    pairs: list[tuple[int, int]], blocks: int, threads: int, before: int
) -> None:
    words = [word for pair in pairs for word in pair]
    assert hashed(words, blocks, threads, before) == reference(words)


@pytest.mark.parametrize("count", [2, 62, 128, 130, 512])
def test_all_slots_together_are_the_hash(count: int) -> None:
    words = [pow(3, 40 + number, 2**64) for number in range(count)]
    assert hashed(words, 2, 48) == reference(words)
