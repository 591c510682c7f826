"""Before memory is grown, a large request takes a block that is half as large again at most."""

from __future__ import annotations

import pytest

from vramkit import Pool
from vramkit.driver import Device

from .support import MIB, segment_bytes

# MiB that are there, and asked for.
TAKEN = [(6, 4), (10, 8), (12, 8), (96, 64)]
LEFT = [(8, 4), (14, 8), (112, 64), (4, 8)]


def served(pool: Pool) -> tuple[int, int]:
    stats = pool.stats()
    return stats.larger_hits, stats.growth_hits


@pytest.mark.parametrize(("there", "asked"), TAKEN)
def test_of_the_stream_itself(pool: Pool, device: Device, there: int, asked: int) -> None:
    pool.configure(thread_cache_max_blocks=0)  # every free reaches the shelf
    with device.stream() as stream:
        address = pool.malloc(there * MIB, stream)
        device.kernels.spin(1_000_000, stream=stream)
        device.fill(address, 1, there * MIB, stream=stream)
        pool.free(address)
        pool.reset_stats()
        assert pool.malloc(asked * MIB, stream) == address  # though its work is under way
        device.fill(address, 2, asked * MIB, stream=stream)
        assert served(pool) == (1, 0)
        stats = pool.stats()
        assert (stats.current_usage, stats.reserved) == (asked * MIB, there * MIB)
        pool.free(address, asked * MIB)
        assert pool.malloc(there * MIB, stream) == address  # as large as it was
        pool.free(address, there * MIB)


@pytest.mark.parametrize(("there", "asked"), TAKEN)
def test_of_idle_memory(pool: Pool, there: int, asked: int) -> None:
    pool.preallocate(there * MIB, 1)
    address = pool.malloc(asked * MIB)
    assert served(pool) == (1, 0)
    assert pool.stats().reserved == there * MIB
    pool.free(address, asked * MIB)


@pytest.mark.parametrize(("there", "asked"), LEFT)
def test_not_one_that_is_larger_still_or_too_small(pool: Pool, there: int, asked: int) -> None:
    pool.configure(thread_cache_max_blocks=0)
    shelved = pool.malloc(there * MIB)
    pool.free(shelved)
    pool.reset_stats()
    address = pool.malloc(asked * MIB)
    assert address != shelved
    assert served(pool) == (0, 1)
    assert pool.stats().reserved == (there + asked) * MIB
    pool.free(address)


def test_the_closest_goes_first(pool: Pool) -> None:
    pool.configure(thread_cache_max_blocks=0)
    blocks = {size: pool.malloc(size * MIB) for size in (8, 10, 12)}
    for address in blocks.values():
        pool.free(address)
    pool.reset_stats()
    taken = [pool.malloc(8 * MIB) for _ in blocks]
    assert taken == [blocks[8], blocks[10], blocks[12]]
    assert (pool.stats().shelf_hits, *served(pool)) == (1, 2, 0)
    for address in taken:
        pool.free(address)


@pytest.mark.sim_only
def test_not_another_streams_whose_work_is_under_way(pool: Pool, device: Device) -> None:
    pool.configure(thread_cache_max_blocks=0)
    with device.stream() as busy, device.stream() as other:
        shelved = pool.malloc(6 * MIB, busy)
        device.kernels.spin(10**9, stream=busy)
        device.fill(shelved, 1, 6 * MIB, stream=busy)
        pool.free(shelved)
        pool.reset_stats()
        address = pool.malloc(4 * MIB, other)
        assert address != shelved
        device.fill(address, 1, 4 * MIB, stream=other)
        assert served(pool) == (0, 1)
        pool.free(address)


def test_not_for_small_requests(pool: Pool, device: Device) -> None:
    pool.preallocate(2 * MIB, 1)
    address = pool.malloc(MIB + MIB // 2)  # would be a third too large
    assert served(pool) == (0, 1)
    assert pool.stats().reserved == 2 * MIB + segment_bytes(device)
    pool.free(address)
