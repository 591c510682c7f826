"""What each path asks of the driver, counted."""

from __future__ import annotations

import pytest

from vramkit import Pool
from vramkit.driver import Device, Simulator, Stream
from vramkit.pool import Buffer

from .support import (
    FENCE,
    FIRST_FENCE,
    KIB,
    MIB,
    RAW,
    Foreign,
    calls,
    eventually,
    legacy_streams,
    run,
)

pytestmark = pytest.mark.sim_only

GROWTH = {"cuMemCreate": 1, "cuMemMap": 1, "cuMemSetAccess": 1}


def times(count: int, counts: dict[str, int]) -> dict[str, int]:
    return {call: count * each for call, each in counts.items()}


# From the cache


def test_a_pair_from_the_cache_makes_none_at_all(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    with device.stream() as stream:
        pool.free(pool.malloc(4096, stream))
        sim.reset_call_counts()
        for _ in range(100):
            pool.free(pool.malloc(4000, stream))
            pool.free(pool.malloc(4000, stream), 4000, stream)
            Buffer(pool, 4096, stream).close()
        counts = sim.call_counts()
        assert {call for call, count in counts.items() if count} == {
            "simBlockAlloc",
            "simBlockFree",
        }


@pytest.mark.parametrize("size", [4096, MIB, 3 * MIB, 20 * MIB])
def test_the_legacy_stream_needs_no_question_either(pool: Pool, sim: Simulator, size: int) -> None:
    pool.free(pool.malloc(size))
    calls(sim)
    for _ in range(10):
        pool.free(pool.malloc(size))
    assert calls(sim) == {}


def test_the_legacy_stream_needs_none_by_any_name(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    with device.stream() as stream:
        pool.free(pool.malloc(4096, stream))
    calls(sim)
    for legacy in legacy_streams(device):
        address = pool.malloc(4096, legacy)  # of idle blocks, at its first use
        pool.also_used_on(address, legacy)
        pool.free(address, stream=legacy)
    assert calls(sim) == {}


def test_a_raw_handle_costs_two_questions(pool: Pool, device: Device, sim: Simulator) -> None:
    with device.stream() as stream:
        for foreign in (Foreign(stream), Stream.from_handle(device, stream.handle)):
            pool.free(pool.malloc(4096, foreign))
            calls(sim)
            for _ in range(10):
                pool.free(pool.malloc(4096, foreign))  # freed without a stream: none to ask after
            assert calls(sim) == times(10, RAW)
            pool.free(pool.malloc(4096, foreign), stream=foreign)
            assert calls(sim) == times(2, RAW)


def test_a_new_stream_is_looked_at_once(pool: Pool, device: Device, sim: Simulator) -> None:
    pool.free(pool.malloc(4096))
    with device.stream() as stream:
        calls(sim)
        pool.free(pool.malloc(4096, stream))  # idle blocks of the class are there
        assert calls(sim) == {"cuStreamGetCtx": 1}


# From memory that is mapped


def test_the_way_back_from_the_stream_cache_is_free_on_the_same_stream(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    pool.configure(thread_cache_max_blocks=0)
    with device.stream() as stream:
        for size in (4096, 2 * MIB, 100 * MIB):
            address = pool.malloc(size, stream)
            pool.free(address)
            calls(sim)
            assert pool.malloc(size, stream) == address
            assert calls(sim) == {}, size
            pool.free(address)
    assert pool.stats().stream_cache_hits == 3


def test_a_refill_from_the_stream_cache_serves_a_batch(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    pool.configure(thread_cache_max_blocks=32, batch_alloc_count=8)
    with device.stream() as stream:
        blocks = [pool.malloc(4096, stream) for _ in range(64)]
        run(lambda: [pool.free(address) for address in blocks])
        assert eventually(lambda: pool.stats().waiting == 64 * 4096)  # what the thread kept too
        pool.reset_stats()
        calls(sim)
        blocks = [pool.malloc(4096, stream) for _ in range(64)]
        assert calls(sim) == {}
        stats = pool.stats()
        assert (stats.stream_cache_hits, stats.cache_hits) == (8, 56)
        for address in blocks:
            pool.free(address)


@pytest.mark.parametrize(("others", "stream_cache_hits"), [(0, 4), (30, 16)])
def test_a_refill_is_an_eighth_of_the_room_in_the_cache(
    pool: Pool, device: Device, others: int, stream_cache_hits: int
) -> None:
    """An empty cache takes 128 KiB of 1 MiB beside the block asked for; a full one nothing."""
    pool.configure(cache_bytes=MIB)
    with device.stream() as stream:
        kept = [pool.malloc(28 * KIB, stream) for _ in range(others)]
        blocks = [pool.malloc(32 * KIB, stream) for _ in range(16)]
        run(lambda: [pool.free(address) for address in blocks])
        assert eventually(lambda: pool.stats().waiting >= 16 * 32 * KIB)  # what it kept too
        for address in kept:
            pool.free(address)
        pool.reset_stats()
        blocks = [pool.malloc(32 * KIB, stream) for _ in range(16)]
        stats = pool.stats()
        assert (stats.stream_cache_hits, stats.cache_hits) == (
            stream_cache_hits,
            16 - stream_cache_hits,
        )
        for address in blocks:
            pool.free(address)


def test_blocks_above_60_kib_come_one_by_one(pool: Pool, device: Device, sim: Simulator) -> None:
    with device.stream() as stream:
        blocks = [pool.malloc(MIB, stream) for _ in range(16)]
        run(lambda: [pool.free(address) for address in blocks])
        assert eventually(lambda: pool.stats().waiting == 16 * MIB)
        pool.reset_stats()
        calls(sim)
        assert {pool.malloc(MIB, stream) for _ in range(16)} == set(blocks)
        assert calls(sim) == {}
        assert (pool.stats().stream_cache_hits, pool.stats().cache_hits) == (16, 0)
        for address in blocks:
            pool.free(address)


def test_a_slab_is_cut_off_idle_memory_for_nothing(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    with device.stream() as stream:
        pool.free(pool.malloc(256, stream))  # a page, of which this took 64 KiB
        calls(sim)
        for size in (1000, 4096, 20_000, 40_000):
            pool.free(pool.malloc(size, stream))
            assert calls(sim) == {}, size
        stats = pool.stats()
        assert (stats.pieces, stats.slabs, stats.device_growths) == (1, 5, 1)


@pytest.mark.parametrize(("size", "count"), [(4096, 600), (MIB, 3), (40 * MIB, 2)])
def test_preallocated_blocks_cost_nothing_later(
    pool: Pool, device: Device, sim: Simulator, size: int, count: int
) -> None:
    with device.stream() as stream:
        pool.free(pool.malloc(256, stream))
        pool.preallocate(size, count)
        calls(sim)
        blocks = [pool.malloc(size, stream) for _ in range(count)]
        assert calls(sim) == {}
        for address in blocks:
            pool.free(address)


# New memory


def pieces_of(need: int, held: int, card: int) -> int:
    """A 24th of what is needed or a 1024th of what is held, at most a 512th of the card; the last
    page of large ones is a piece of its own."""
    pages = -(-need // (2 * MIB)) * 2 * MIB
    most = -(-max(pages // 24, held // 1024) // (2 * MIB)) * 2 * MIB
    most = max(4 * MIB, min(most, card // 512 // (2 * MIB) * 2 * MIB, 64 * MIB))
    whole, rest = divmod(pages, most)
    return whole + (rest > 0) + ((rest or most) > 4 * MIB)


def test_growth_is_three_calls_and_two_for_each_further_piece(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    with device.stream() as stream:
        blocks = []
        for size in (2 * MIB, 4 * MIB, 6 * MIB, 64 * MIB, 256 * MIB, 1 << 30):
            held = pool.stats().reserved
            calls(sim)
            blocks.append(pool.malloc(size, stream))
            made = calls(sim)
            made.pop("cuStreamGetCtx", 0)  # with the first one
            pieces = pieces_of(size, held, device.total_memory)
            expected = GROWTH | {"cuMemCreate": pieces, "cuMemMap": pieces}
            if pieces > 1:
                expected["cuMemGetInfo_v2"] = 1  # so that none is taken for nothing
            assert made == expected, size
            assert pool.stats().reserved == held + size
        assert pool.stats().pieces == 1 + 1 + 2 + 16 + 33 + 129
        for address in blocks:
            pool.free(address)


def test_growth_is_less_what_is_free_at_its_end(pool: Pool, device: Device, sim: Simulator) -> None:
    with device.stream() as stream:
        first = pool.malloc(7 * MIB, stream)  # of 8: one is left
        calls(sim)
        second = pool.malloc(5 * MIB, stream)
        assert second == first + 7 * MIB
        assert calls(sim) == GROWTH
        assert pool.stats().reserved == 12 * MIB
        assert pool.stats().remapped_bytes == 0
        pool.free(first)
        pool.free(second)


@pytest.mark.sim(data=False, capacity="16GiB")
@pytest.mark.parametrize(("held", "mib"), [(0, 2), (2 << 30, 2), (3 << 30, 4), (8 << 30, 8)])
def test_a_request_below_2_mib_grows_by_a_1024th_of_what_is_held(
    pool: Pool, device: Device, sim: Simulator, held: int, mib: int
) -> None:
    with device.stream() as stream:
        blocks = [pool.malloc(held, stream)] if held else []
        before = pool.stats()
        blocks += [pool.malloc(64 * KIB, stream)]
        assert pool.stats().reserved - before.reserved == mib * MIB
        calls(sim)
        blocks += [pool.malloc(64 * KIB, stream) for _ in range(16 * mib - 1)]
        assert calls(sim) == {}
        assert pool.stats().device_growths - before.device_growths == 1
        for address in blocks:
            pool.free(address)


# Between streams


def test_another_streams_block_costs_its_fence_and_one_query(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    pool.configure(thread_cache_max_blocks=0)
    with device.stream() as stream, device.stream() as other:
        pool.free(pool.malloc(256, other))
        address = pool.malloc(4 * MIB, stream)
        pool.free(address)
        device.synchronize()
        recorded = pool.stats().events_recorded
        calls(sim)
        assert pool.malloc(4 * MIB, other) == address
        assert calls(sim) == {**FENCE, "cuEventQuery": 1}
        assert (pool.stats().cross_stream_hits, pool.stats().events_recorded) == (1, recorded + 1)
        pool.free(address)


def test_another_streams_block_under_way_costs_two_questions_and_a_growth(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    pool.configure(thread_cache_max_blocks=0)
    with device.stream() as busy, device.stream() as other:
        pool.free(pool.malloc(256, other))
        blocks = [pool.malloc(4 * MIB, busy) for _ in range(10)]
        device.kernels.spin(10**9, stream=busy)
        for address in blocks:
            pool.free(address)
        calls(sim)
        address = pool.malloc(4 * MIB, other)
        # For a block, and before the pool grows for all that the stream has freed.
        assert calls(sim) == {**FENCE, "cuEventQuery": 2, **GROWTH}
        assert address not in blocks
        pool.free(address)


def test_short_of_memory_the_stream_waits_by_one_call(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    pool.configure(limit=4 * MIB, thread_cache_max_blocks=0)
    with device.stream() as busy, device.stream() as other:
        small = pool.malloc(256, other)
        address = pool.malloc(2 * MIB, busy)
        device.kernels.spin(10**9, stream=busy)
        pool.free(address)
        calls(sim)
        assert pool.malloc(2 * MIB, other) == address
        made = calls(sim)
        questions = made.pop("cuEventQuery")  # before it gives up on what is done already
        assert questions >= 1
        assert made == {**FIRST_FENCE, "cuStreamWaitEvent": 1}
        assert pool.stats().gpu_wait_hits == 1
        pool.free(address)
        pool.free(small)


# Remapping, and back to the driver


def test_idle_pieces_are_put_together_by_a_map_each_and_one_set_access(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    pool.configure(thread_cache_max_blocks=0)
    with device.stream() as stream:
        blocks = [pool.malloc(4 * MIB, stream) for _ in range(8)]
        pool.configure(limit=32 * MIB)
        for address in blocks[::2]:  # no two are neighbours
            pool.free(address)
        device.synchronize()
        calls(sim)
        large = pool.malloc(16 * MIB, stream)
        made = calls(sim)
        assert (made["cuMemMap"], made["cuMemSetAccess"]) == (4, 1)
        assert not made.keys() & {"cuMemCreate", "cuMemUnmap", "cuMemRelease"}
        stats = pool.stats()
        assert (stats.remap_hits, stats.remapped_bytes, stats.reserved) == (1, 16 * MIB, 32 * MIB)
        pool.step()  # the old mappings go later
        assert calls(sim)["cuMemUnmap"] == 4
        for address in [large, *blocks[1::2]]:
            pool.free(address)


def test_neighbours_need_no_remapping(pool: Pool, device: Device, sim: Simulator) -> None:
    pool.configure(limit=16 * MIB, thread_cache_max_blocks=0)
    with device.stream() as stream:
        blocks = [pool.malloc(4 * MIB, stream) for _ in range(4)]
        for address in blocks:
            pool.free(address)
        device.synchronize()
        calls(sim)
        large = pool.malloc(16 * MIB)  # on another stream
        assert not calls(sim).keys() & {"cuMemMap", "cuMemSetAccess", "cuMemCreate"}
        assert (pool.stats().idle_hits, pool.stats().remapped_bytes) == (1, 0)
        pool.free(large)


def test_memory_goes_back_by_two_calls_a_piece(pool: Pool, device: Device, sim: Simulator) -> None:
    with device.stream() as stream:
        pool.free(pool.malloc(8 * MIB, stream))
        calls(sim)
        assert pool.release_all() == 8 * MIB
        assert calls(sim) == {
            **FIRST_FENCE,
            "cuEventSynchronize": 1,
            "cuEventDestroy_v2": 1,
            "cuMemUnmap": 2,
            "cuMemRelease": 2,
        }


def test_blocks_of_raw_streams_without_a_fence_cost_one_device_sync(
    pool: Pool, sim: Simulator, streams: list[Stream]
) -> None:
    for stream in streams:
        pool.free(pool.malloc(8 * MIB, Foreign(stream)))
    calls(sim)
    assert pool.release_all() == 24 * MIB
    assert calls(sim) == {
        "cuMemAlloc_v2": 1,
        "cuMemFree_v2": 1,
        "cuMemUnmap": 6,
        "cuMemRelease": 6,
    }
