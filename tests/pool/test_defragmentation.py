"""Fragmentation is measured as defined, and idle memory in pieces is joined."""

from __future__ import annotations

import pytest

from vramkit import Pool
from vramkit.driver import Device, Simulator

from .support import MIB, calls, eventually, idle_ranges, run

pytestmark = pytest.mark.sim_only


def scatter(pool: Pool, device: Device, pieces: int, size: int = 4 * MIB) -> list[int]:
    """Leaves that many idle pieces, each beside a block in use; returns the latter.

    Blocks of a stream that has ended are anybody's as soon as its work is done.
    """
    with device.stream() as stream:
        blocks = [pool.malloc(size, stream) for _ in range(2 * pieces)]
        for address in blocks[::2]:
            pool.free(address)
        device.synchronize()
    assert pool.stats().idle == pieces * size
    return blocks[1::2]


def idle_pieces(pool: Pool) -> list[int]:
    return [nbytes for _, nbytes in idle_ranges(pool)]


def free(pool: Pool, blocks: list[int]) -> None:
    for address in blocks:
        pool.free(address)


# The measure


def test_free_memory_is_fragmented_that_cannot_serve_the_largest_request(
    pool: Pool, device: Device
) -> None:
    kept = scatter(pool, device, 4)
    stats = pool.stats()
    assert (stats.fragmentation_bytes, stats.fragmentation_rate) == (0, 0.0)  # any 4 MiB serve
    kept.append(pool.malloc(6 * MIB))  # two of the pieces, and 2 MiB are left of them
    stats = pool.stats()
    assert stats.reserved == 32 * MIB
    assert (stats.fragmentation_bytes, stats.fragmentation_rate) == (10 * MIB, 10 / 32)
    pool.free(kept.pop())  # cached beside what was left: 8 MiB
    assert pool.stats().fragmentation_bytes == 8 * MIB
    free(pool, kept)
    # Neighbours count as one; a block between the old addresses of two moved pieces has none.
    assert 4 * MIB in idle_pieces(pool)
    assert pool.stats().fragmentation_bytes == 4 * MIB


def test_what_small_blocks_leave_counts_for_large_requests_only(pool: Pool) -> None:
    small = pool.malloc(4096)
    assert pool.stats().fragmentation_bytes == 0
    large = pool.malloc(2 * MIB)
    stats = pool.stats()
    rest = 2 * MIB - 4096
    assert stats.fragmentation_bytes == rest
    assert stats.fragmentation_rate == rest / (4 * MIB)
    pool.free(small)
    pool.free(large)


def test_it_does_not_matter_where_memory_is_free(pool: Pool, device: Device) -> None:
    with device.stream() as stream:
        blocks = [pool.malloc(4 * MIB, stream) for _ in range(16)]
        free(pool, blocks[::2])
        kept = pool.malloc(6 * MIB, stream)
        stats = pool.stats()
        assert (stats.cached + stats.waiting, stats.idle) == (26 * MIB, 0)
        assert (stats.fragmentation_bytes, stats.fragmentation_rate) == (26 * MIB, 26 / 64)
        free(pool, [kept, *blocks[1::2]])


def test_an_empty_pool_has_no_fragmentation(pool: Pool) -> None:
    assert (pool.stats().fragmentation_bytes, pool.stats().fragmentation_rate) == (0, 0.0)


def test_requests_count_for_the_interval_they_were_made_in_and_the_next(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    pool.configure(decay_ms=None, enable_defrag=False)  # measured, never joined
    kept = scatter(pool, device, 4)
    kept.append(pool.malloc(8 * MIB))  # two of the pieces
    for expected in (8 * MIB, 8 * MIB, 0):
        assert pool.stats().fragmentation_bytes == expected
        sim.advance(5.0)
        pool.step()
    free(pool, kept)


def test_requests_of_threads_that_have_ended_count_too(pool: Pool, device: Device) -> None:
    kept = scatter(pool, device, 4)
    run(lambda: pool.free(pool.malloc(8 * MIB)))  # two of the pieces
    assert eventually(lambda: pool.stats().cached == 0)
    assert pool.stats().fragmentation_bytes == 8 * MIB
    free(pool, kept)


# Joining


def test_defragment_makes_one_piece_and_the_next_request_needs_no_call(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    kept = scatter(pool, device, 8)
    with device.stream() as stream:
        pool.free(pool.malloc(4 * MIB, stream))
        calls(sim)
        moved = pool.defragment()
        made = calls(sim)
        assert idle_pieces(pool) == [32 * MIB]
        assert (moved, pool.stats().remapped_bytes) == (made["cuMemMap"] * 4 * MIB,) * 2
        assert made["cuMemMap"] == made["cuMemUnmap"]
        assert made["cuMemSetAccess"] == 1
        assert not made.keys() & {"cuMemCreate", "cuMemRelease"}
        pool.reset_stats()
        large = pool.malloc(32 * MIB, stream)
        assert calls(sim) == {}
        assert (pool.stats().idle_hits, pool.stats().reserved) == (1, 64 * MIB)
        device.fill(large, 1, 32 * MIB, stream=stream)
        free(pool, [large, *kept])
    assert pool.defragment() > 0
    assert pool.defragment() == 0  # nothing left to do


def test_defragment_leaves_what_is_under_way(pool: Pool, device: Device) -> None:
    with device.stream() as stream:
        blocks = [pool.malloc(4 * MIB, stream) for _ in range(6)]
        device.kernels.spin(10**9, stream=stream)
        for address in blocks:
            device.fill(address, 1, 4 * MIB, stream=stream)
        free(pool, blocks[::2])
        assert pool.defragment() == 0
        stream.synchronize()
        assert pool.defragment() > 0
        assert idle_pieces(pool) == [12 * MIB]
        free(pool, blocks[1::2])


@pytest.mark.sim(capacity="32MiB")
def test_defragment_does_nothing_yet_where_old_mappings_have_the_addresses(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    size, piece = 4 * MIB, 2 * MIB
    with device.stream() as busy:
        with device.stream() as gone:
            blocks = [pool.malloc(size, gone) for _ in range(5)]
            three = [pool.malloc(size, busy) for _ in range(3)]
            assert (pool.stats().reserved, pool.stats().pieces) == (32 * MIB, 16)
            device.kernels.spin(10**9, stream=busy)
            # The first and the last of the three are joined, over and over, until less than
            # two blocks are left of the pool's addresses, which are four times the card.
            while sim.live_objects()["mappings"] * piece <= 4 * 32 * MIB - 2 * size:
                assert not busy.query()
                free(pool, [three[0], three[2]])
                free(pool, [pool.malloc(2 * size, busy), three[1]])
                three = [pool.malloc(size, busy) for _ in range(3)]
            free(pool, blocks[::2])
        assert pool.defragment() == 0
        assert pool.stats().idle == 3 * size
        assert not busy.query()
        busy.synchronize()
        assert pool.defragment() == 3 * size
        assert idle_pieces(pool) == [3 * size]
        free(pool, [*three, *blocks[1::2]])


@pytest.mark.parametrize(("threshold", "joined"), [(0.0, True), (0.24, True), (0.25, False)])
def test_a_step_joins_above_the_threshold(
    pool: Pool, device: Device, threshold: float, joined: bool
) -> None:
    pool.configure(decay_ms=None, defrag_threshold=threshold)
    kept = scatter(pool, device, 4)
    kept.append(pool.malloc(8 * MIB))  # two of the pieces; the others: 8 of 32 MiB
    pool.reset_stats()
    pool.step()
    assert (idle_pieces(pool) == [8 * MIB]) == joined == (pool.stats().remapped_bytes > 0)
    assert pool.stats().fragmentation_bytes == (0 if joined else 8 * MIB)
    free(pool, kept)


def test_steps_look_once_an_interval(pool: Pool, device: Device, sim: Simulator) -> None:
    pool.configure(decay_ms=None, defrag_interval_ms=1000)
    pool.step()
    kept = scatter(pool, device, 8)
    kept.append(pool.malloc(8 * MIB))
    pool.reset_stats()
    sim.advance(0.9)
    pool.step()
    assert pool.stats().remapped_bytes == 0
    sim.advance(0.2)
    pool.step()
    assert pool.stats().remapped_bytes > 0
    free(pool, kept)


def test_without_enable_defrag_steps_join_nothing_and_defragment_still_does(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    pool.configure(decay_ms=None, enable_defrag=False)
    kept = scatter(pool, device, 8)
    kept.append(pool.malloc(8 * MIB))
    pool.reset_stats()
    for _ in range(3):
        sim.advance(5.0)
        pool.step()
    assert pool.stats().remapped_bytes == 0
    assert pool.defragment() > 0
    free(pool, kept)


def test_old_mappings_are_unmapped_some_at_a_step(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    pool.configure(decay_ms=None, defrag_threshold=0.0)
    kept = scatter(pool, device, 100, 2 * MIB)
    kept.append(pool.malloc(6 * MIB))
    calls(sim)
    unmapped = []
    more = True
    while more:
        more = pool.step()
        unmapped.append(calls(sim).get("cuMemUnmap", 0))
    assert len(unmapped) == 2
    assert unmapped[0] == 64
    assert sum(unmapped) == pool.stats().remapped_bytes // (2 * MIB)
    free(pool, kept)
