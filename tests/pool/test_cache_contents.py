"""What a thread keeps for itself when there is more than it may keep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vramkit import Pool
from vramkit.driver import Device, Stream

from .support import MIB

KIB = 1 << 10
# Eight classes to a doubling.
CLASSES = [(9 + step) * part * KIB // 16 for part in (512, 1024) for step in range(8)]


@pytest.fixture
def stream(device: Device) -> Iterator[Stream]:
    with device.stream() as made:
        yield made


def come_and_go(pool: Pool, stream: Stream, sizes: list[int]) -> int:
    """All are allocated, then freed. How many the cache did not have."""
    before = pool.stats().cache_misses
    for address in [pool.malloc(size, stream) for size in sizes]:
        pool.free(address)
    return pool.stats().cache_misses - before


def test_what_is_no_longer_needed_makes_room_for_larger_blocks(pool: Pool, stream: Stream) -> None:
    """Each would nearly fill the 32 MiB; the larger ones come later."""
    come_and_go(pool, stream, [512 * KIB] * 60)
    misses = [come_and_go(pool, stream, [MIB] * 24) for _ in range(12)]
    assert misses[0] == 24
    assert misses[-1] == 0


def test_the_last_of_a_class_stays(pool: Pool, stream: Stream) -> None:
    """More of each than the cache may keep: none of them is without."""
    assert len(CLASSES) == 16
    for _ in range(4):
        come_and_go(pool, stream, CLASSES * 4)
    assert pool.stats().cached <= 32 * MIB
    assert come_and_go(pool, stream, CLASSES) == 0


def test_one_very_large_block_leaves_the_others_where_they_are(pool: Pool, stream: Stream) -> None:
    small = [512 * KIB] * 60
    come_and_go(pool, stream, small)
    come_and_go(pool, stream, [16 * MIB])
    assert come_and_go(pool, stream, small) == 0
    assert come_and_go(pool, stream, [16 * MIB]) == 1


def test_small_blocks_stay_whatever_comes(pool: Pool, stream: Stream) -> None:
    small = [4 * KIB] * 50
    come_and_go(pool, stream, small)
    for _ in range(12):
        come_and_go(pool, stream, [MIB] * 40)
    assert come_and_go(pool, stream, small) == 0


def test_a_cache_follows_a_bound_that_falls(pool: Pool, stream: Stream) -> None:
    come_and_go(pool, stream, [128 * KIB] * 60 + [256 * KIB] * 60)
    pool.configure(cache_bytes=4 * MIB)
    come_and_go(pool, stream, [512 * KIB])
    assert pool.stats().cached <= 4 * MIB
