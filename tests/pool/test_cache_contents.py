"""What a thread keeps for itself when there is more than it may keep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vramkit import Pool
from vramkit.driver import Device, Stream

from .support import KIB, MIB

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


@pytest.mark.parametrize("bytes_of_cache", [32 * MIB, 8 * MIB, MIB])
def test_a_block_of_a_16th_of_a_cache_leaves_at_once(
    pool: Pool, stream: Stream, bytes_of_cache: int
) -> None:
    pool.configure(cache_bytes=bytes_of_cache)
    large = bytes_of_cache // 16
    small = large * 7 // 8
    come_and_go(pool, stream, [small] + [large] * 8)
    cached = pool.stats().cached
    assert cached >= small
    assert come_and_go(pool, stream, [small]) == 0
    assert come_and_go(pool, stream, [large] * 8) == 8
    assert pool.stats().stream_cache_hits >= 8
    assert pool.stats().cached == cached


def test_one_very_large_block_leaves_the_others_where_they_are(pool: Pool, stream: Stream) -> None:
    small, large = [512 * KIB] * 60, [16 * MIB]
    come_and_go(pool, stream, small + large)
    assert come_and_go(pool, stream, small) == 0
    assert come_and_go(pool, stream, large) == 1
    assert come_and_go(pool, stream, small) == 0


def test_what_a_cache_keeps_serves_before_the_pool_grows(pool: Pool, stream: Stream) -> None:
    come_and_go(pool, stream, [512 * KIB] * 60)
    before = pool.stats()
    assert (before.cached, before.reserved) == (30 * MIB, 30 * MIB)
    assert come_and_go(pool, stream, [30 * MIB]) == 1
    stats = pool.stats()
    assert (stats.cached, stats.reserved) == (0, 30 * MIB)
    assert (stats.device_growths, stats.remapped_bytes) == (before.device_growths, 0)
    assert stats.stream_cache_hits == before.stream_cache_hits + 1


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


def test_of_what_another_stream_has_done_with_half_comes_along(
    pool: Pool, device: Device, stream: Stream
) -> None:
    size = 16 * KIB
    pool.configure(thread_cache_max_blocks=16)
    come_and_go(pool, stream, [size] * 32)
    device.synchronize()
    assert pool.stats().waiting == 18 * size
    with device.stream() as other:
        blocks = []
        while not pool.stats().cross_stream_hits:  # after what is idle
            blocks.append(pool.malloc(size, other))
        stats = pool.stats()
        assert stats.waiting == 9 * size
        blocks += [pool.malloc(size, other) for _ in range(8)]
        assert pool.stats().cache_misses == stats.cache_misses
        for address in blocks:
            pool.free(address)
    assert pool.check_invariants() == ""
