"""The text of the kernels that decode packed weights, run as a card would run it."""

from __future__ import annotations

import numpy
import pytest
from driver.ptx import Kernel, Memory
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray
from soak import rounds

from vramkit import _core
from vramkit.weights.packing import Packing

SOURCE, TARGET = 0x1_0000_0000, 0x2_0000_0000


def uniform(count: int) -> NDArray[numpy.uint16]:
    return numpy.random.default_rng(count).integers(0, 1 << 16, count, "<u2")


def decoded(weights: NDArray[numpy.uint16], blocks: int, threads: int) -> bytes:
    """The weights' own memory, and no byte more, can be written."""
    packing = Packing(weights, always=True, threads=1)
    (chunk,) = packing.chunks
    packed = bytearray(packing.nbytes)
    packing.pack(weights, packed, threads=1)
    source = Memory(SOURCE, packed)
    target = Memory(TARGET, b"\x55" * weights.nbytes, writable=True)
    shape = [source, target], blocks, threads
    Kernel("vk_unpack_bf16").run([TARGET, SOURCE, chunk.weights], *shape)
    if chunk.exceptions:
        arguments = [TARGET, SOURCE, chunk.weights, chunk.exceptions]
        Kernel("vk_patch_bf16").run(arguments, *shape)
    return bytes(target.content)


@settings(max_examples=rounds(15, 1000))
@given(
    some.lists(some.integers(0, 0xFFFF), min_size=1, max_size=60),
    some.integers(1, 3),
    some.integers(1, 9),
)
def test_any_patterns_in_any_shape(values: list[int], blocks: int, threads: int) -> None:
    weights = numpy.array(values, "<u2")
    assert decoded(weights, blocks, threads) == weights.tobytes()


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 511, 512, 513, 1025, 1031])
def test_every_index_and_parts_of_any_length(count: int) -> None:
    """Exponents 96 to 111: all 15 entries of the table, and exceptions."""
    weights = uniform(count) & 0x87FF | 96 << 7
    assert decoded(weights, 2, 16) == weights.tobytes()


@pytest.mark.parametrize(("blocks", "threads"), [(1, 1), (3, 5), (1, 1024)])
def test_fewer_and_more_threads_than_work(blocks: int, threads: int) -> None:
    """Nine of ten weights are exceptions. The last shape would read far beyond the chunk."""
    weights = uniform(301)
    assert decoded(weights, blocks, threads) == weights.tobytes()


def test_a_damaged_position_does_not_reach_other_memory() -> None:
    weights = numpy.arange(16, dtype="<u2") << 7
    packed = bytearray(_core.packed_bytes(16, 1))
    Packing(weights, always=True).pack(weights, packed)
    packed[512 * 3 : 512 * 3 + 4] = b"\xff" * 4
    target = Memory(TARGET, bytes(32), writable=True)
    Kernel("vk_patch_bf16").run([TARGET, SOURCE, 16, 1], [Memory(SOURCE, packed), target], 1, 1)
    assert not any(target.content)
