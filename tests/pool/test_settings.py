"""Settings: what each does, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from vramkit import Pool
from vramkit.driver import Device, OutOfMemoryError
from vramkit.pool import PoolConfig

MIB = 1 << 20


def test_settings_are_given_read_and_changed(device: Device) -> None:
    with Pool(device=device, limit=64 * MIB) as pool:
        assert pool.config == PoolConfig(limit=64 * MIB)
        pool.configure(batch_alloc_count=4)
        assert pool.config == PoolConfig(limit=64 * MIB, batch_alloc_count=4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"thread_cache_max_blocks": -1}, "thread_cache_max_blocks is -1; it may be 0 or more"),
        ({"global_cache_max_blocks": -1}, "global_cache_max_blocks is -1; it may be 0 or more"),
        ({"cache_bytes": -1}, "cache_bytes is -1; it may be 0 or more"),
        ({"cache_bytes": 2**70}, "cache_bytes is"),
        ({"batch_alloc_count": 0}, "batch_alloc_count is 0; it may be 1 or more"),
        ({"limit": 0}, "limit is 0; it may be None, or 2 MiB"),
        ({"limit": 2**64}, "limit is"),
        ({"limit": "1GiB"}, "limit"),
        ({"enable_stats": "yes"}, "enable_stats"),
        ({"size_classes": "coarse"}, "size_classes"),
    ],
)
def test_values_that_make_no_sense(
    pool: Pool, device: Device, settings: dict[str, Any], words: str
) -> None:
    for use in (lambda: pool.configure(**settings), lambda: Pool(device=device, **settings)):
        with pytest.raises(ValueError, match=words):
            use()
    assert pool.config == PoolConfig()


def test_settings_that_do_not_exist(pool: Pool, device: Device) -> None:
    for use in (lambda: pool.configure(limits=1), lambda: Pool(device=device, limits=1)):
        with pytest.raises(TypeError, match=r"no setting 'limits'; it has thread_cache_max_blocks"):
            use()


def test_limit_is_never_exceeded(device: Device) -> None:
    with Pool(device=device, limit=16 * MIB) as pool:
        blocks = []
        with pytest.raises(OutOfMemoryError):
            while True:
                blocks.append(pool.malloc(700_000))
        assert 12 * MIB < pool.stats().reserved <= pool.stats().peak_reserved <= 16 * MIB
        with pytest.raises(OutOfMemoryError, match="The limit is 16 MiB"):
            pool.preallocate(MIB, 17)
        pool.configure(limit=None)
        blocks.append(pool.malloc(16 * MIB))
        for address in blocks:
            pool.free(address)


def test_thread_cache_max_blocks_bounds_a_class_in_a_cache(pool: Pool) -> None:
    pool.configure(thread_cache_max_blocks=4)
    blocks = [pool.malloc(4096) for _ in range(40)]
    assert pool.stats().cached <= 4 * 4096
    for address in blocks:
        pool.free(address)
        assert pool.stats().cached <= 4 * 4096


def test_without_a_thread_cache_every_free_is_shared(pool: Pool) -> None:
    pool.configure(thread_cache_max_blocks=0)
    for _ in range(3):
        pool.free(pool.malloc(4096))
        assert pool.stats().cached == 0


def test_cache_bytes_bounds_a_cache(pool: Pool) -> None:
    pool.configure(cache_bytes=3 * MIB)
    blocks = [pool.malloc(size) for size in (MIB, 2 * MIB, 2 * MIB, 500_000, MIB)]
    for address in blocks:
        pool.free(address)
        assert pool.stats().cached <= 3 * MIB


def test_a_block_larger_than_a_cache_leaves_the_small_ones_in_it(pool: Pool) -> None:
    small, large = pool.malloc(4096), pool.malloc(40 * MIB)
    pool.free(small)
    cached = pool.stats().cached
    pool.free(large)
    assert pool.stats().cached == cached > 0


def test_global_cache_max_blocks_sends_idle_memory_back(pool: Pool, device: Device) -> None:
    pool.configure(thread_cache_max_blocks=0, global_cache_max_blocks=2)
    blocks = [pool.malloc(2 * MIB) for _ in range(8)]
    for address in blocks:
        pool.free(address)
        device.synchronize()
    assert pool.stats().reserved <= 3 * 2 * MIB


def test_batch_alloc_count_blocks_are_made_at_once(pool: Pool) -> None:
    pool.configure(batch_alloc_count=8)
    blocks = [pool.malloc(MIB) for _ in range(8)]
    assert pool.stats().device_growths == 1
    blocks.append(pool.malloc(MIB))
    assert pool.stats().device_growths == 2
    for address in blocks:
        pool.free(address)


def test_without_statistics_only_the_counters_stand_still(pool: Pool) -> None:
    pool.configure(enable_stats=False)
    address = pool.malloc(4096)
    stats = pool.stats()
    assert (stats.allocation_count, stats.total_allocated, stats.current_usage) == (0, 0, 4096)
    pool.free(address)
