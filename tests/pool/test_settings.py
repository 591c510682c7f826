"""Settings: what each does, and what is refused. Those that have to do with time: test_time.py."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from vramkit import Pool
from vramkit.driver import Device, OutOfMemoryError
from vramkit.pool import PoolConfig
from vramkit.pool import pool as pool_module

from .support import KIB, MIB

DEFAULT = PoolConfig(background=False)


def test_settings_are_given_read_and_changed(device: Device) -> None:
    with Pool(device=device, background=False, limit=64 * MIB) as pool:
        assert pool.config == PoolConfig(background=False, limit=64 * MIB)
        pool.configure(batch_alloc_count=4)
        assert pool.config == PoolConfig(background=False, limit=64 * MIB, batch_alloc_count=4)


def test_of_two_changes_at_once_both_are_kept(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    other = threading.Thread(target=pool.configure, kwargs={"batch_alloc_count": 4})
    configured = pool_module._configured

    def interrupted(base: PoolConfig, settings: dict[str, Any]) -> PoolConfig:
        changed = configured(base, settings)
        if "cache_bytes" in settings:
            other.start()
            other.join(0.1)  # time enough to be done, were it not made to wait
        return changed

    monkeypatch.setattr(pool_module, "_configured", interrupted)
    pool.configure(cache_bytes=MIB)
    other.join()
    assert pool.config == PoolConfig(background=False, cache_bytes=MIB, batch_alloc_count=4)


# What is refused

NO_SENSE: list[tuple[dict[str, Any], str]] = [
    ({"thread_cache_max_blocks": -1}, "thread_cache_max_blocks is -1; it may be 0 or more"),
    ({"global_cache_max_blocks": -1}, "global_cache_max_blocks is -1; it may be 0 or more"),
    ({"cache_bytes": -1}, "cache_bytes is -1; it may be 0 or more"),
    ({"cache_bytes": 2**70}, r"cache_bytes is \d+; it may be 0 or more, below 2\^63"),
    ({"cache_bytes": "1"}, "cache_bytes is '1'; it may be 0 or more"),
    ({"thread_cache_bytes": -1}, "thread_cache_bytes is -1; it may be 0 or more"),
    ({"batch_alloc_count": 0}, "batch_alloc_count is 0; it may be 1 or more"),
    ({"batch_alloc_count": 2**70}, r"it may be 1 or more, below 2\^63"),
    ({"batch_alloc_count": True}, "batch_alloc_count is True; it may be 1 or more"),
    ({"alignment": 256.0}, "alignment is 256.0; it may be 256"),
    ({"alignment": 128}, "alignment is 128; it may be 256, 512, 1024, ... 65536"),
    ({"alignment": 768}, "alignment is 768; it may be 256"),
    ({"alignment": 131_072}, "alignment is 131072; it may be 256"),
    ({"defrag_threshold": -0.1}, "defrag_threshold is -0.1; it may be 0 or more, below 1"),
    ({"defrag_threshold": 1}, "defrag_threshold is 1; it may be 0 or more, below 1"),
    ({"defrag_threshold": float("nan")}, "defrag_threshold is nan; it may be 0 or more"),
    ({"defrag_threshold": "x"}, "defrag_threshold is 'x'; it may be 0 or more"),
    ({"defrag_interval_ms": 2**41}, r"it may be 1 or more milliseconds, up to 2\^40"),
    ({"defrag_interval_ms": None}, "defrag_interval_ms is None; it may be 1 or more"),
    ({"defrag_interval_ms": 0}, "defrag_interval_ms is 0; it may be 1 or more milliseconds"),
    ({"decay_ms": 0}, "decay_ms is 0; it may be None for never, or 1 or more milliseconds"),
    ({"decay_ms": -5}, "decay_ms is -5; it may be None for never"),
    ({"limit": 0}, "limit is 0; it may be None, or 2 MiB"),
    ({"limit": 2**64}, r"limit is \d+; it may be None, or 2 MiB .* below 2\^63"),
    ({"limit": "1GiB"}, "limit is '1GiB'; it may be None, or 2 MiB"),
    ({"enable_stats": "yes"}, "enable_stats is 'yes'; it may be True or False"),
    ({"enable_defrag": 2}, "enable_defrag is 2; it may be True or False"),
    ({"size_classes": "coarse"}, 'size_classes is \'coarse\'; it may be "fine" or "power_of_two"$'),
    ({"size_classes": ["fine"]}, r"size_classes is \['fine'\]; it may be"),
    ({"large": "async"}, 'large is \'async\'; it may be "pool" or "direct"$'),
]
NO_EFFECT: list[tuple[dict[str, Any], str]] = [
    (
        {"enable_defrag": False, "defrag_threshold": 0.5},
        "defrag_threshold has no effect without enable_defrag",
    ),
    (
        {"enable_defrag": False, "defrag_interval_ms": 100},
        "defrag_interval_ms has no effect without enable_defrag",
    ),
    (
        {"nvtx": True, "limit": 64 * MIB, "defrag_threshold": 0.1},
        "defrag_threshold has no effect with nvtx, where no memory moves",
    ),
    (
        {"nvtx": True, "limit": 64 * MIB, "enable_defrag": False},
        "enable_defrag has no effect with nvtx, where no memory moves",
    ),
    (
        {"cache_bytes": 64 * MIB, "thread_cache_bytes": 32 * MIB},
        "cache_bytes is 67108864 for one stream, but a thread may keep only thread_cache_bytes",
    ),
    (
        {"thread_cache_max_blocks": 0, "cache_bytes": MIB},
        "cache_bytes has no effect with thread_cache_max_blocks=0: threads keep nothing",
    ),
    (
        {"thread_cache_max_blocks": 0, "thread_cache_bytes": 64 * MIB},
        "thread_cache_bytes has no effect with thread_cache_max_blocks=0",
    ),
    (
        {"cache_bytes": 0, "thread_cache_max_blocks": 8},
        "thread_cache_max_blocks has no effect with cache_bytes=0",
    ),
    (
        {"cache_bytes": 0, "thread_cache_bytes": 64 * MIB},
        "thread_cache_bytes has no effect with cache_bytes=0",
    ),
    ({"size_classes": "power_of_two", "alignment": 512}, "no effect on classes of powers of two"),
]


@pytest.mark.parametrize(("settings", "words"), [*NO_SENSE, *NO_EFFECT])
def test_values_that_make_no_sense_or_do_nothing(
    pool: Pool, device: Device, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        pool.configure(**settings)
    with pytest.raises(ValueError, match=words):
        Pool(device=device, background=False, **settings)
    assert pool.config == DEFAULT


def test_settings_that_do_not_exist(pool: Pool, device: Device) -> None:
    for use in (lambda: pool.configure(limits=1), lambda: Pool(device=device, limits=1)):
        with pytest.raises(TypeError, match=r"no setting 'limits'; it has alignment, thread_cache"):
            use()


def test_whether_there_is_a_thread_is_decided_when_the_pool_is_made(pool: Pool) -> None:
    with pytest.raises(ValueError, match="background is decided when the pool is made"):
        pool.configure(background=True)
    assert pool.config == DEFAULT


# Where blocks lie


@pytest.mark.parametrize("alignment", [256 << shift for shift in range(9)])
def test_alignment_is_that_of_every_block(pool: Pool, alignment: int) -> None:
    pool.free(pool.malloc(300))  # a block made before, which must not serve
    pool.configure(alignment=alignment)
    sizes = [1, 300, 4096, 5000, 70_000, 700_000, 2 * MIB - 1, 3 * MIB]
    blocks = sorted((pool.malloc(size), size) for size in sizes * 3)
    assert [address % alignment for address, _ in blocks] == [0] * len(blocks)
    for (address, size), (following, _) in itertools.pairwise(blocks):
        assert address + size <= following
    for address, size in blocks:
        pool.free(address, size)


# The limit


def test_limit_is_never_exceeded(device: Device) -> None:
    with Pool(device=device, background=False, limit=16 * MIB) as pool:
        blocks = []
        with pytest.raises(OutOfMemoryError):
            while True:
                blocks.append(pool.malloc(700_000))
        assert 12 * MIB < pool.stats().reserved <= pool.stats().peak_reserved <= 16 * MIB
        with pytest.raises(OutOfMemoryError, match="The limit is 16 MiB"):
            pool.malloc(16 * MIB)
        pool.configure(limit=None)
        blocks.append(pool.malloc(16 * MIB))
        for address in blocks:
            pool.free(address)


def test_a_limit_counts_in_whole_pages(device: Device) -> None:
    with Pool(device=device, background=False, limit=4 * MIB - 1) as pool:
        address = pool.malloc(2 * MIB)
        assert pool.try_malloc(256) is None
        pool.free(address)


def test_preallocation_keeps_to_the_limit(pool: Pool) -> None:
    limit = 16 * MIB
    pool.configure(limit=limit)
    small = pool.malloc(4096)
    large = pool.malloc(6 * MIB)
    pool.free(large)
    with pytest.raises(OutOfMemoryError, match=f"The limit is {limit // MIB} MiB"):
        pool.preallocate(4 * MIB, 4)
    assert pool.stats().peak_reserved <= limit
    pool.preallocate(4 * MIB, 2)
    pool.free(small)


def test_a_limit_below_what_is_held_stops_growth_and_takes_nothing_back(pool: Pool) -> None:
    blocks = [pool.malloc(8 * MIB) for _ in range(2)]
    pool.configure(limit=4 * MIB)
    assert pool.stats().reserved == 16 * MIB
    assert pool.try_malloc(8 * MIB) is None
    pool.free(blocks.pop())
    blocks.append(pool.malloc(8 * MIB))  # what is there goes on to serve
    for address in blocks:
        pool.free(address)


# Thread and stream caches


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
    blocks = [pool.malloc(size) for size in [150_000, 100_000] * 20]
    for address in blocks:
        pool.free(address)
        assert pool.stats().cached <= 3 * MIB
    assert pool.stats().cached > 2 * MIB


def test_a_block_larger_than_a_cache_leaves_the_small_ones_in_it(pool: Pool) -> None:
    small, large = pool.malloc(4096), pool.malloc(40 * MIB)
    pool.free(small)
    cached = pool.stats().cached
    pool.free(large)
    assert pool.stats().cached == cached > 0


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_thread_cache_bytes_is_shared_between_the_streams_of_a_thread(
    pool: Pool, device: Device, streams: int
) -> None:
    size = 64 * KIB
    pool.configure(cache_bytes=8 * MIB, thread_cache_bytes=8 * MIB, thread_cache_max_blocks=1000)
    owned = [device.stream() for _ in range(streams)]
    for stream in owned:
        blocks = [pool.malloc(256, stream) for _ in range(2)]
        for address in blocks:
            pool.free(address)
    # All at once: a pool that grows empties the caches first.
    blocks = [pool.malloc(size, stream) for stream in owned for _ in range(12 * MIB // size)]
    for address in blocks:
        pool.free(address)
    # Each has all it may but for an eighth, which goes so that not every free must share.
    assert 7 * MIB - streams * size <= pool.stats().cached <= 8 * MIB
    for stream in owned:
        stream.close()


def test_global_cache_max_blocks_bounds_the_small_blocks_that_are_kept_for_a_stream(
    pool: Pool, device: Device
) -> None:
    pool.configure(thread_cache_max_blocks=0, global_cache_max_blocks=2)
    with device.stream() as stream:
        blocks = [pool.malloc(4096, stream) for _ in range(8)]
        for address in blocks:
            pool.free(address)
            device.synchronize()
        pool.step()
        pool.free(pool.malloc(4096, stream))
        stats = pool.stats()
        assert stats.waiting <= 3 * 4096
        assert stats.waiting + stats.idle == stats.reserved


def test_batch_alloc_count_blocks_are_made_and_moved_at_once(pool: Pool, device: Device) -> None:
    pool.configure(batch_alloc_count=8)
    with device.stream() as stream:
        address = pool.malloc(16 * KIB, stream)
        assert [slab["count"] for slab in pool._layout()["slabs"]] == [8]
        assert pool.stats().cached == 7 * 16 * KIB
        pool.configure(batch_alloc_count=3)
        other = pool.malloc(40 * KIB, stream)  # 120 KiB, in two spans of 64
        assert [slab["count"] for slab in pool._layout()["slabs"]] == [8, 3]
        assert [slab["bytes"] for slab in pool._layout()["slabs"]] == [128 * KIB, 128 * KIB]
        pool.free(address)
        pool.free(other)


def test_without_statistics_only_the_counters_stand_still(pool: Pool) -> None:
    pool.configure(enable_stats=False)
    address = pool.malloc(4096)
    stats = pool.stats()
    assert (stats.allocation_count, stats.total_allocated, stats.current_usage) == (0, 0, 4096)
    pool.free(address)
    stats = pool.stats()
    assert (stats.free_count, stats.total_freed, stats.current_usage) == (0, 0, 0)
