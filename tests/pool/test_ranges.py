"""Free ranges: blocks above 60 KiB are cut off them, and joined again, without a driver call."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from vramkit import Pool
from vramkit.driver import Device, Simulator, Stream

from .support import MIB, calls

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
def test_a_small_block_keeps_one_piece_of_a_large_one(
    shared: Pool, device: Device, stream: Stream
) -> None:
    large = shared.malloc(WHOLE, stream)  # 16 pieces of 8 MiB
    assert shared.stats().pieces == 16
    shared.free(large)
    small = shared.malloc(2 * MIB, stream)
    assert small == large
    device.synchronize()
    assert shared.trim() == WHOLE - 8 * MIB
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
            if number >= 2:
                assert (stats.growth_hits, stats.gpu_wait_hits) == (0, 0)
                assert stats.remap_hits <= stats.allocation_count / 500
                assert stats.remapped_bytes <= peak / 16
        assert pool.check_invariants() == ""
