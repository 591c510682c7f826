"""Large memory serves other sizes than it had.

While the pool is small it is cut and joined without a driver call. Later it stays in whole handles,
so that all that is free can be put together.
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
    shared: Pool, device: Device, stream: Stream, sim: Simulator
) -> None:
    kept = device.memory_info().total // 64  # free, it is not touched
    assert kept < WHOLE
    shared.free(shared.malloc(WHOLE, stream))
    for sizes in ([16, 16, 24], [20, 34], [120], [16] * 3, [128]):
        calls(sim)
        blocks = [shared.malloc(size * MIB, stream) for size in sizes]
        assert calls(sim) == {}  # its work may be under way
        assert shared.check_invariants() == ""
        free(shared, blocks)
    assert (shared.stats().device_growths, shared.stats().moved) == (1, 0)


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


def test_small_blocks_do_not_keep_large_handles(shared: Pool, stream: Stream) -> None:
    large = shared.malloc(WHOLE, stream)
    shared.free(large)
    small = shared.malloc(2 * MIB, stream)
    assert not large <= small < large + WHOLE
    shared.free(small)


@pytest.mark.sim_only
@pytest.mark.parametrize("limit", [None, GIB])
def test_a_pool_has_a_block_of_each_size_until_that_is_much(
    device: Device, stream: Stream, limit: int | None
) -> None:
    """As long as a stream has not more free than a 64th of what the pool may have."""
    most = limit or device.memory_info().total
    with Pool(device=device, background=False, limit=limit, thread_cache_max_blocks=0) as pool:
        largest = 0
        for pages in range(2, 12):
            largest = 2 * MIB * pages
            before = pool.stats().reserved
            pool.free(pool.malloc(largest, stream))
            if before <= most // 64:
                assert pool.stats().reserved == before + largest
        assert pool.stats().reserved <= most // 64 + 2 * largest
        assert pool.check_invariants() == ""


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
    assert pool.trim() == 0  # the block keeps its handle
    pool.free(kept)
    assert pool.release_all() == 16 * MIB


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
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_free_serves_whatever_fits(device: Device, stream: Stream, seed: int) -> None:
    """Five sixths of the limit: a 16th may be lost to cut handles, an eighth to rounding."""
    choose = random.Random(seed)
    limit = GIB
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
