"""Free ranges: blocks above 60 KiB are cut off them, and joined again, without a driver call."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from vramkit import Pool
from vramkit.driver import Device, Simulator, Stream

from .support import KIB, MIB, calls, eventually, run

GIB = 1 << 30
WHOLE = 128 * MIB
LAYER = (2, 6, 2, 2, 2, 8, 8, 2)


@pytest.fixture
def shared(device: Device) -> Iterator[Pool]:
    """A pool whose threads keep nothing."""
    with Pool(device=device, background=False, thread_cache_max_blocks=0) as pool:
        yield pool
        assert pool.check_invariants() == ""


@pytest.fixture
def stream(device: Device) -> Iterator[Stream]:
    with device.stream() as made:
        yield made


def free(pool: Pool, blocks: list[int]) -> None:
    for address in blocks:
        pool.free(address)


@pytest.mark.sim_only
def test_a_stream_cuts_what_it_has_freed_and_joins_it_again(
    shared: Pool, stream: Stream, sim: Simulator
) -> None:
    shared.free(shared.malloc(WHOLE, stream))
    for sizes in ([16, 16, 24], [20, 34], [120], [16] * 3, [128]):
        calls(sim)
        blocks = [shared.malloc(size * MIB, stream) for size in sizes]
        assert calls(sim) == {}  # its work may be under way
        assert shared.check_invariants() == ""
        free(shared, blocks)
    assert (shared.stats().device_growths, shared.stats().remapped_bytes) == (1, 0)


# Which range serves


def spread(pool: Pool, stream: Stream, mib: list[int]) -> dict[str, int]:
    """Blocks of these sizes side by side, by the names a, b, ..."""
    blocks = [pool.malloc(size * MIB, stream) for size in mib]
    assert blocks == [blocks[0] + sum(mib[:index]) * MIB for index in range(len(mib))]
    return {chr(ord("a") + index): address for index, address in enumerate(blocks)}


@pytest.mark.sim_only
def test_a_range_of_the_same_size_serves_before_neighbours_are_joined(
    shared: Pool, stream: Stream, sim: Simulator
) -> None:
    at = spread(shared, stream, [4, 4, 2, 8, 2])
    free(shared, [at["d"], at["a"], at["b"]])
    calls(sim)
    assert shared.malloc(8 * MIB, stream) == at["d"]
    assert shared.malloc(4 * MIB, stream) == at["b"]  # the newest; joined it would be the first
    assert shared.malloc(4 * MIB, stream) == at["a"]
    assert calls(sim) == {}
    assert shared.stats().stream_cache_hits == 3
    free(shared, list(at.values()))


@pytest.mark.sim_only
@pytest.mark.parametrize("whose", ["own", "idle"])
def test_the_smallest_range_that_is_large_enough_serves_after_neighbours_were_joined(
    shared: Pool, device: Device, stream: Stream, sim: Simulator, whose: str
) -> None:
    owner = stream if whose == "own" else device.stream()
    at = spread(shared, owner, [20, 2, 6, 6, 2, 8, 2])
    free(shared, [at[name] for name in "cdfa"])
    if owner is not stream:
        owner.close()
    calls(sim)
    assert shared.malloc(10 * MIB, stream) == at["c"]  # 6 and 6
    assert shared.malloc(7 * MIB, stream) == at["f"]
    assert shared.malloc(2 * MIB, stream) == at["c"] + 10 * MIB  # all that was left there
    assert shared.malloc(MIB, stream) == at["f"] + 7 * MIB
    assert shared.malloc(14 * MIB, stream) == at["a"]
    assert not calls(sim).keys() & {"cuMemCreate", "cuMemMap", "cuEventRecord"}
    stats = shared.stats()
    hits = (stats.stream_cache_hits, stats.idle_hits)
    assert hits == ((5, 0) if whose == "own" else (0, 5))
    free(shared, [at["c"], at["f"], at["c"] + 10 * MIB, at["f"] + 7 * MIB, at["a"]])
    free(shared, [at[name] for name in "beg"])


@pytest.mark.sim_only
def test_idle_memory_beside_the_streams_own_is_joined_with_it(
    shared: Pool, device: Device, stream: Stream, sim: Simulator
) -> None:
    with device.stream() as gone:
        first = shared.malloc(4 * MIB, gone)
        second = shared.malloc(4 * MIB, stream)
        shared.free(first)
    device.kernels.spin(10**9, stream=stream)
    device.fill(second, 1, 4 * MIB, stream=stream)
    shared.free(second)
    calls(sim)
    assert shared.malloc(8 * MIB, stream) == first == second - 4 * MIB
    assert not calls(sim).keys() & {"cuMemCreate", "cuMemMap"}
    assert not stream.query()
    device.fill(first, 2, 8 * MIB, stream=stream)
    shared.free(first)


@pytest.mark.sim_only
def test_a_joined_range_is_another_streams_when_the_newest_work_on_it_is_done(
    shared: Pool, device: Device, streams: list[Stream]
) -> None:
    owner, other, _ = streams
    at = spread(shared, owner, [4, 4])
    inside = range(at["a"], at["a"] + 8 * MIB)
    shared.free(at["a"])
    device.synchronize()
    device.kernels.spin(10**9, stream=owner)
    device.fill(at["b"], 1, 4 * MIB, stream=owner)
    shared.free(at["b"])
    assert shared.malloc(6 * MIB, owner) == at["a"]
    shared.free(at["a"])
    elsewhere = shared.malloc(2 * MIB, other)
    assert elsewhere not in inside
    device.fill(elsewhere, 2, 2 * MIB, stream=other)
    owner.synchronize()
    again = shared.malloc(8 * MIB, other)
    assert again == at["a"]
    device.fill(again, 2, 8 * MIB, stream=other)
    free(shared, [elsewhere, again])


@pytest.mark.sim_only
def test_sizes_just_above_a_page_hold_no_page_more_each(shared: Pool, stream: Stream) -> None:
    size = 2 * MIB + 64 * KIB
    blocks = [shared.malloc(size - 1, stream) for _ in range(64)]
    assert shared.stats().reserved == 64 * size
    free(shared, blocks)


# Slabs and thread caches


@pytest.mark.sim_only
def test_a_slab_lies_on_free_memory_of_its_stream_and_waits_for_its_work(
    shared: Pool, device: Device, streams: list[Stream], sim: Simulator
) -> None:
    stream, other, _ = streams
    large = shared.malloc(2 * MIB, stream)
    device.kernels.spin(10**9, stream=stream)
    device.fill(large, 1, 2 * MIB, stream=stream)
    shared.free(large)
    calls(sim)
    small = [shared.malloc(size, stream) for size in (256, 4096, 60 * KIB)]
    assert calls(sim) == {}
    assert all(large <= address < large + 2 * MIB for address in small)
    for address in small:
        device.fill(address, 2, 256, stream=stream)
    elsewhere = [shared.malloc(4096, other) for _ in range(40)]
    assert not any(large <= address < large + 2 * MIB for address in elsewhere)
    for address in elsewhere:
        device.fill(address, 3, 4096, stream=other)
    assert not stream.query()
    free(shared, small + elsewhere)


@pytest.mark.sim_only
@pytest.mark.parametrize("whose", ["another thread", "another stream"])
def test_what_other_caches_keep_serves_before_the_pool_grows(
    pool: Pool, device: Device, streams: list[Stream], whose: str
) -> None:
    stream, other, _ = streams

    def use() -> None:
        free(pool, [pool.malloc(MIB, stream) for _ in range(20)])
        assert pool.stats().cached == 20 * MIB
        if whose == "another thread":
            run(ask)
        else:
            ask()

    def ask() -> None:
        large = pool.malloc(16 * MIB, stream if whose == "another thread" else other)
        device.fill(large, 1, 16 * MIB, stream=stream if whose == "another thread" else other)
        pool.free(large)

    run(use)
    assert eventually(lambda: pool.stats().cached == 0)
    assert pool.stats().peak_reserved == 20 * MIB


@pytest.mark.sim_only
def test_what_ended_streams_leave_serves_all_that_follow(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    for number in range(50):
        with device.stream() as stream:
            sizes = [4096, 300 * KIB, (1 + number % 7) * MIB, 24 * MIB]
            blocks = [pool.malloc(size, stream) for size in sizes]
            for address, size in zip(blocks, sizes, strict=True):
                device.fill(address, 1, size, stream=stream)
            free(pool, blocks)
            stream.synchronize()
    assert pool.stats().peak_reserved <= 34 * MIB  # of the round with 7 MiB, whole pages
    assert sim.call_counts().get("cuCtxSynchronize", 0) == 0


# Programs


@pytest.mark.sim_only
def test_what_is_cut_holds_what_is_written(shared: Pool, device: Device, stream: Stream) -> None:
    shared.free(shared.malloc(WHOLE, stream))
    blocks = [shared.malloc(size * MIB, stream) for size in (16, 24)]
    for number, address in enumerate(blocks):
        device.fill(address, number + 1, 8 * MIB, stream=stream)
    for number, address in enumerate(blocks):
        found = bytearray(8 * MIB)
        device.copy(found, address, len(found), stream=stream)
        stream.synchronize()
        assert found == bytes([number + 1]) * len(found)
    assert shared.stats().device_growths == 1
    free(shared, blocks)


@pytest.mark.sim_only
@pytest.mark.sim(data=False, capacity="128GiB")
def test_steps_of_changing_sizes_hold_little_more_than_they_use(
    shared: Pool, stream: Stream
) -> None:
    """What a training run does: the smallest range serves, and neighbours are joined again."""
    gradients: list[int] = []
    for batch in 6 * (32, 8, 48, 16, 64, 24, 4, 40):
        unit = batch * MIB // 8
        kept: list[int] = []
        for _ in range(4):  # layers
            kept += [shared.malloc(parts * unit, stream) for parts in LAYER]
            free(shared, [shared.malloc(parts * unit, stream) for parts in (6, 2, 8)])
        free(shared, gradients)
        gradients.clear()
        for number, address in enumerate(reversed(kept)):
            scratch = shared.malloc(LAYER[-1 - number % len(LAYER)] * unit, stream)
            if number % 3 == 0:
                gradients.append(shared.malloc((1 + number % 4) * 2 * MIB, stream))
            free(shared, [address, scratch])
        assert shared.check_invariants() == ""
    free(shared, gradients)
    stats = shared.stats()
    assert stats.peak_usage < stats.peak_reserved < stats.peak_usage * 1.03
    assert stats.remap_hits + stats.growth_hits < stats.allocation_count / 50
    assert stats.remapped_bytes < stats.peak_reserved


@pytest.mark.sim_only
def test_what_the_thread_keeps_is_joined_before_a_large_range_is_cut(
    pool: Pool, sim: Simulator, stream: Stream
) -> None:
    blocks = [pool.malloc(MIB, stream) for _ in range(4)]
    large = pool.malloc(16 * MIB, stream)
    last = pool.malloc(MIB, stream)
    for address in (large, blocks[1], blocks[2]):  # the small ones stay in the thread cache
        pool.free(address)
    calls(sim)
    joined = pool.malloc(2 * MIB, stream)
    assert joined == blocks[1]
    assert pool.malloc(16 * MIB, stream) == large
    assert calls(sim) == {}
    for address in (joined, large, last, blocks[0], blocks[3]):
        pool.free(address)


@pytest.mark.sim_only
def test_a_small_block_keeps_one_piece_of_a_large_one(
    shared: Pool, device: Device, stream: Stream
) -> None:
    large = shared.malloc(WHOLE, stream)  # 21 pieces of 6 MiB and one of 2
    assert shared.stats().pieces == 22
    shared.free(large)
    small = shared.malloc(2 * MIB, stream)
    assert small == large
    device.synchronize()
    assert shared.trim() == WHOLE - 6 * MIB
    shared.free(small)


@pytest.mark.sim_only
def test_idle_memory_is_cut_and_each_piece_goes_back_when_all_of_it_is_idle(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    with device.stream() as gone:
        pool.free(pool.malloc(16 * MIB, gone))
    assert pool.stats().idle == 16 * MIB
    calls(sim)
    kept = pool.malloc(3 * MIB)
    assert calls(sim) == {}
    assert (pool.stats().idle_hits, pool.stats().idle) == (1, 13 * MIB)
    assert pool.trim() == 12 * MIB  # the block keeps one of four pieces
    pool.free(kept)
    assert pool.release_all() == 4 * MIB


@pytest.mark.sim_only
def test_what_is_preallocated_is_there_in_a_large_pool_too(
    device: Device, stream: Stream, sim: Simulator
) -> None:
    with Pool(device=device, background=False, limit=GIB) as pool:
        blocks = [pool.malloc(200 * MIB, stream)]
        with device.stream() as gone:
            pool.free(pool.malloc(16 * MIB, gone))
        pool.preallocate(2 * MIB, 8)
        calls(sim)
        blocks += [pool.malloc(2 * MIB, stream) for _ in range(8)]
        assert "cuMemCreate" not in calls(sim)
        free(pool, blocks)


@pytest.mark.sim_only
def test_a_large_block_is_cut_rather_than_waited_for(device: Device, stream: Stream) -> None:
    """The stream has it all free, and its kernel runs."""
    with Pool(device=device, background=False, limit=64 * MIB) as pool:
        large = pool.malloc(64 * MIB, stream)
        device.kernels.spin(100_000_000, stream=stream)
        pool.free(large)
        blocks = [pool.try_malloc(2 * MIB, stream) for _ in range(32)]
        assert None not in blocks
        assert len(set(blocks)) == 32
        assert not stream.query()
        assert pool.check_invariants() == ""
        free(pool, [block for block in blocks if block is not None])


@pytest.mark.sim_only
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_free_serves_whatever_fits(device: Device, stream: Stream, seed: int) -> None:
    """15 of 16 parts of the limit: the rest may lie in pieces that a block in use keeps."""
    choose = random.Random(seed)
    limit = 1152 * MIB
    with Pool(device=device, background=False, limit=limit) as pool:
        live: dict[int, int] = {}
        for step in range(1500):
            size = 2 * MIB * choose.choice([1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
            while live and sum(live.values()) + size > limit * 15 // 16:
                address = choose.choice(list(live))
                pool.free(address)
                del live[address]
            live[pool.malloc(size, stream)] = size
            if step % 100 == 0:
                device.kernels.spin(1_000_000, stream=stream)
                pool.step()
                assert pool.check_invariants() == ""
        assert pool.stats().remap_hits > 10
        assert pool.stats().peak_reserved <= limit
        free(pool, list(live))


def one_training_step(pool: Pool, stream: Stream, batch: int) -> None:
    """Sizes that follow the batch: kept on the way there, freed on the way back."""
    kept = []
    for layer in range(12):
        kept += [pool.malloc(batch * MIB * part // 2, stream) for part in (3, 1, 4)]
        pool.free(pool.malloc(batch * MIB * (1 + layer % 3), stream))
    while kept:
        gradient = pool.malloc(batch * MIB * 2, stream)
        pool.free(kept.pop())
        pool.free(gradient)


@pytest.mark.sim(data=False)
@pytest.mark.sim_only
def test_changing_sizes_settle_just_above_what_is_in_use_and_hardly_anything_moves(
    device: Device, stream: Stream
) -> None:
    peak = 816 * MIB
    with Pool(device=device, background=False, limit=peak * 102 // 100) as pool:
        for number in range(6):
            pool.reset_stats()
            for batch in (8, 2, 12, 4, 16, 6, 1, 10):
                one_training_step(pool, stream, batch)
            pool.step()
            stats = pool.stats()
            assert stats.peak_usage == peak
            if number >= 4:
                assert stats.growth_hits == 0
            if number >= 2:
                assert (stats.growth_hits, stats.gpu_wait_hits) <= (1, 0)
                assert stats.remap_hits <= stats.allocation_count / 500
                assert stats.remapped_bytes <= peak / 16
        assert pool.check_invariants() == ""
