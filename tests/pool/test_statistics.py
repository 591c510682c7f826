"""Statistics add up."""

from __future__ import annotations

import msgspec
import pytest

from vramkit import Pool
from vramkit.driver import Device

from .support import MIB


def test_counters_and_usage(pool: Pool, device: Device) -> None:
    first, second = pool.malloc(1000), pool.malloc(3 * MIB)
    pool.free(first)
    stats = pool.stats()
    assert (stats.allocation_count, stats.free_count) == (2, 1)
    assert (stats.total_allocated, stats.total_freed) == (1000 + 3 * MIB, 1000)
    assert stats.current_usage == stats.total_allocated - stats.total_freed
    assert stats.cache_hits + stats.cache_misses == 2
    # 2 MiB, and 2 more behind what was free of them; what is left of those is the stream's.
    assert stats.reserved == stats.peak_reserved == 4 * MIB
    assert (stats.pieces, stats.slabs, stats.large_blocks) == (2, 1, 2)
    assert stats.growth_hits == stats.device_growths == 2
    pool.free(second)


@pytest.mark.sim_only
def test_every_tier_counts_what_it_serves(pool: Pool, device: Device) -> None:
    pool.configure(limit=26 * MIB)
    tiers = ["cache", "stream_cache", "idle", "cross_stream", "gpu_wait", "remap", "growth"]

    def served() -> list[str]:
        """What has served since the last look."""
        stats = msgspec.structs.asdict(pool.stats())
        hits = {tier: stats[f"{tier}_hits"] for tier in tiers}
        assert stats["cache_misses"] == sum(hits.values()) - hits["cache"]
        pool.reset_stats()
        return [tier for tier, count in hits.items() for _ in range(count)]

    with device.stream() as stream, device.stream() as other:
        blocks = [pool.malloc(4 * MIB, stream) for _ in range(4)]
        assert served() == ["growth"] * 4
        small = pool.malloc(4096, stream)
        assert served() == ["growth"]
        pool.free(small)
        small = pool.malloc(4096, stream)
        assert served() == ["cache"]
        pool.free(blocks.pop())
        blocks.append(pool.malloc(4 * MIB, stream))
        assert served() == ["stream_cache"]
        pool.free(blocks.pop())
        device.synchronize()
        blocks.append(pool.malloc(4 * MIB, other))
        assert served() == ["cross_stream"]
        pool.preallocate(8 * MIB, 1)
        blocks.append(pool.malloc(8 * MIB, other))
        assert served() == ["idle"]
        device.kernels.spin(10**9, stream=stream)
        pool.free(blocks.pop(0))  # of the busy stream
        blocks.append(pool.malloc(4 * MIB, other))
        assert served() == ["gpu_wait"]
        device.synchronize()
        pool.free(blocks.pop(0))
        pool.free(blocks.pop(1))  # not its neighbour
        device.synchronize()
        blocks.append(pool.malloc(8 * MIB, other))
        assert served() == ["remap"]
        for address in [small, *blocks]:
            pool.free(address)


@pytest.mark.sim_only
def test_a_block_that_is_done_is_taken_although_other_memory_of_its_stream_was_done_before(
    pool: Pool, device: Device
) -> None:
    with device.stream() as stream, device.stream() as other:
        kept, freed = pool.malloc(3 * MIB, stream), pool.malloc(4 * MIB, stream)
        assert pool.stats().waiting == MIB  # what is left of the first
        pool.free(freed)
        device.synchronize()
        assert pool.malloc(4 * MIB, other) == freed
        pool.free(kept)
        pool.free(freed)
        assert pool.stats().cross_stream_hits == 1


def test_peak_usage_is_exact_to_64_kib(pool: Pool) -> None:
    blocks = [pool.malloc(10_000) for _ in range(100)]
    for address in blocks:
        pool.free(address)
    assert 1_000_000 - 65_536 <= pool.stats().peak_usage <= 1_000_000
    pool.reset_stats()
    assert pool.stats().peak_usage == 0


def test_peak_usage_is_exact_to_64_kib_whatever_the_streams(pool: Pool, device: Device) -> None:
    streams = [device.stream() for _ in range(100)]
    blocks = [pool.malloc(60_000, stream) for stream in streams]
    for address in blocks:
        pool.free(address)
    assert 6_000_000 - 65_536 <= pool.stats().peak_usage <= 6_000_000
    for stream in streams:
        stream.close()


def test_reset_stats_keeps_usage(pool: Pool) -> None:
    address = pool.malloc(5000)
    pool.reset_stats()
    stats = msgspec.structs.asdict(pool.stats())
    used = {"current_usage", "peak_usage", "reserved", "peak_reserved"}
    held = {"cached", "idle", "pieces", "segments", "slabs"}
    assert {name for name, value in stats.items() if value} == used | held
    pool.free(address)
    assert pool.stats().free_count == 1


def test_reset_peaks_keeps_counters(pool: Pool) -> None:
    kept, freed = pool.malloc(5000), pool.malloc(8 * MIB)
    pool.free(freed)
    pool.release_all()
    again = pool.malloc(8 * MIB)
    pool.free(again)
    pool.trim()
    before = pool.stats()
    assert before.peak_usage == 5000 + 8 * MIB
    assert before.peak_reserved >= before.reserved + 8 * MIB
    pool.reset_peaks()
    after = pool.stats()
    assert (after.peak_usage, after.peak_reserved) == (5000, after.reserved)
    changed = {"peak_usage": 5000, "peak_reserved": after.reserved}
    assert msgspec.structs.replace(before, **changed) == after
    pool.free(kept)


def test_print_stats_shows_every_figure(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    address = pool.malloc(123_456)
    pool.print_stats()
    shown = capsys.readouterr().out
    for name in msgspec.structs.fields(type(pool.stats())):
        assert name.name.replace("_", " ") in shown
    assert "123,456" in shown
    pool.free(address)
