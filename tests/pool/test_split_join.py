"""Large memory serves other sizes than it had.

It is cut and joined without a driver call, but no handle is lost for something small, so that what
is free can be put together when the pool is short.
"""

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
def test_a_stream_cuts_what_it_has_freed_and_puts_it_together_again(
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
    """What a training run does: the smallest stretch serves, and neighbours are joined again."""
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
    assert stats.peak_usage < stats.peak_reserved < stats.peak_usage * 5 / 4
    assert stats.remapped_bytes == 0


@pytest.mark.sim(data=False, capacity="128GiB")
def test_small_blocks_do_not_keep_large_handles(shared: Pool, stream: Stream) -> None:
    large = shared.malloc(WHOLE, stream)  # one handle
    shared.free(large)
    small = shared.malloc(2 * MIB, stream)
    assert not large <= small < large + WHOLE
    shared.free(small)


@pytest.mark.sim_only
def test_idle_memory_is_cut_and_goes_back_when_all_of_it_is_idle(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    with device.stream() as gone:
        pool.free(pool.malloc(16 * MIB, gone))
    assert pool.stats().idle == 16 * MIB
    calls(sim)
    kept = pool.malloc(4 * MIB)
    assert "cuMemCreate" not in calls(sim)
    assert (pool.stats().idle_hits, pool.stats().idle) == (1, 12 * MIB)
    assert pool.trim() == 8 * MIB  # the block keeps one of two handles
    pool.free(kept)
    assert pool.release_all() == 8 * MIB


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
def test_a_handle_is_cut_rather_than_waited_for(device: Device, stream: Stream) -> None:
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
    """Five sixths of the limit: the rest may be lost to cut handles and to rounding."""
    choose = random.Random(seed)
    limit = 1152 * MIB
    with Pool(device=device, background=False, limit=limit) as pool:
        live: dict[int, int] = {}
        for step in range(1500):
            size = 2 * MIB * choose.choice([1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
            while live and sum(live.values()) + size > limit * 5 // 6:
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


@pytest.mark.sim(data=False, capacity="4GiB")
@pytest.mark.sim_only
def test_a_large_pool_cuts_no_handle_for_less_but_uses_up_what_is_cut(
    shared: Pool, stream: Stream, sim: Simulator
) -> None:
    blocks = [shared.malloc(GIB // 2, stream)]  # an eighth of the card; handles are of 8 MiB
    shared.free(shared.malloc(16 * MIB, stream))
    calls(sim)
    blocks.append(shared.malloc(2 * MIB, stream))
    assert calls(sim)["cuMemCreate"] == 1
    front = shared.malloc(10 * MIB, stream)  # one of the two, and a part of the other
    rest = shared.malloc(2 * MIB, stream)
    assert calls(sim) == {}
    assert rest == front + 10 * MIB
    free(shared, [*blocks, front, rest])


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
def test_changing_sizes_settle_at_a_limit_and_hardly_anything_moves(
    device: Device, stream: Stream, sim: Simulator
) -> None:
    """Handles that are mapped a second time: now and then a block's, not those of every step."""
    limit = 1152 * MIB
    with Pool(device=device, background=False, limit=limit) as pool:
        maps = []
        for _ in range(8):
            calls(sim)
            for batch in (8, 2, 12, 4, 16, 6, 1, 10):
                one_training_step(pool, stream, batch)
            pool.step()
            maps.append(calls(sim).get("cuMemMap", 0))
        assert sum(maps[2:]) < 60
        assert pool.stats().peak_usage > limit * 2 // 3
        assert pool.check_invariants() == ""
