"""Statistics add up."""

from __future__ import annotations

import msgspec
import pytest

from vramkit import Pool
from vramkit.driver import Device

MIB = 1 << 20


def test_counters_and_usage(pool: Pool) -> None:
    first, second = pool.malloc(1000), pool.malloc(3 * MIB)
    pool.free(first)
    stats = pool.stats()
    assert (stats.allocation_count, stats.free_count) == (2, 1)
    assert (stats.total_allocated, stats.total_freed) == (1000 + 3 * MIB, 1000)
    assert stats.current_usage == stats.total_allocated - stats.total_freed
    assert stats.cache_hits + stats.cache_misses == 2
    assert stats.reserved == stats.peak_reserved == 2 * MIB + 4 * MIB
    assert stats.chunks == stats.device_growths == 2
    pool.free(second)


def test_hits_and_misses_by_tier(pool: Pool, device: Device) -> None:
    address = pool.malloc(2 * MIB)
    pool.free(address)
    pool.free(pool.malloc(2 * MIB))
    pool.preallocate(4 * MIB, 1)
    pool.free(pool.malloc(4 * MIB))
    pool.configure(thread_cache_max_blocks=0)
    pool.free(pool.malloc(2 * MIB))  # a hit, and back through the shared level
    pool.free(pool.malloc(2 * MIB))
    stats = pool.stats()
    assert (stats.cache_hits, stats.cache_misses) == (2, 3)
    assert (stats.device_growths, stats.fresh_hits, stats.global_hits) == (2, 2, 1)
    assert stats.marks == 0  # nobody but the stream itself wanted them


def test_peak_usage_is_exact_to_64_kib(pool: Pool) -> None:
    blocks = [pool.malloc(10_000) for _ in range(100)]
    for address in blocks:
        pool.free(address)
    assert 1_000_000 - 65_536 <= pool.stats().peak_usage <= 1_000_000
    pool.reset_stats()
    assert pool.stats().peak_usage == 0


def test_reset_stats_keeps_usage(pool: Pool) -> None:
    address = pool.malloc(5000)
    pool.reset_stats()
    stats = msgspec.structs.asdict(pool.stats())
    kept = {"current_usage", "peak_usage", "reserved", "peak_reserved", "cached", "waiting"}
    for name, value in stats.items():
        assert (value > 0) == (name in kept or name == "chunks"), name
    pool.free(address)
    assert pool.stats().free_count == 1


def test_print_stats_shows_every_figure(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    address = pool.malloc(123_456)
    pool.print_stats()
    shown = capsys.readouterr().out
    for name in msgspec.structs.fields(type(pool.stats())):
        assert name.name.replace("_", " ") in shown
    assert "123,456" in shown
    pool.free(address)
