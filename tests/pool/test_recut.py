"""Large memory serves other sizes than it had: cut, and joined again, without a driver call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vramkit import Pool
from vramkit.driver import Device, OutOfMemoryError, Simulator, Stream

from .support import MIB, calls

GIB = 1 << 30


@pytest.fixture
def tight(device: Device) -> Iterator[Pool]:
    """A pool of 64 MiB whose threads keep nothing."""
    with Pool(device=device, background=False, limit=64 * MIB, thread_cache_max_blocks=0) as pool:
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
    tight: Pool, stream: Stream, sim: Simulator
) -> None:
    whole = tight.malloc(64 * MIB, stream)
    for sizes in ([16, 16, 32], [10, 40, 14], [64], [2] * 32, [64]):
        if whole:
            tight.free(whole)
        calls(sim)
        blocks = [tight.malloc(size * MIB, stream) for size in sizes]
        assert calls(sim) == {}  # while its work is under way, perhaps
        assert sorted(blocks)[0] == blocks[0]
        assert tight.check_invariants() == ""
        free(tight, blocks)
        whole = 0
    assert (tight.stats().device_growths, tight.stats().moved) == (1, 0)


def test_what_is_cut_holds_what_is_written(tight: Pool, device: Device, stream: Stream) -> None:
    tight.free(tight.malloc(64 * MIB, stream))
    blocks = [tight.malloc(size * MIB, stream) for size in (8, 24, 32)]
    for number, address in enumerate(blocks):
        device.fill(address, number + 1, 8 * MIB, stream=stream)
    for number, address in enumerate(blocks):
        found = bytearray(8 * MIB)
        device.copy(found, address, len(found), stream=stream)
        stream.synchronize()
        assert found == bytes([number + 1]) * len(found)
    free(tight, blocks)


def test_blocks_keep_their_own_stream_and_the_rest_is_cut_too(tight: Pool, stream: Stream) -> None:
    tight.free(tight.malloc(64 * MIB, stream))
    blocks = [tight.malloc(21 * MIB, stream) for _ in range(2)]
    with pytest.raises(OutOfMemoryError):
        tight.malloc(32 * MIB, stream)
    blocks.append(tight.malloc(20 * MIB, stream))
    assert tight.stats().reserved == 64 * MIB
    free(tight, blocks)


def test_another_stream_waits_for_what_was_cut(tight: Pool, device: Device, stream: Stream) -> None:
    with device.stream() as other:
        whole = tight.malloc(64 * MIB, stream)
        device.kernels.spin(1_000_000, stream=stream)
        device.fill(whole, 1, 64 * MIB, stream=stream)
        tight.free(whole)
        kept = tight.malloc(8 * MIB, stream)
        assert tight.try_malloc(32 * MIB, other) is None
        theirs = tight.malloc(32 * MIB, other)
        device.fill(theirs, 2, 32 * MIB, stream=other)
        free(tight, [kept, theirs])


def test_small_blocks_do_not_keep_large_handles_while_there_is_room(
    pool: Pool, stream: Stream
) -> None:
    large = pool.malloc(64 * MIB, stream)
    pool.free(large)
    stream.synchronize()
    small = pool.malloc(2 * MIB, stream)
    assert not large <= small < large + 64 * MIB
    pool.free(small)


@pytest.mark.sim_only
@pytest.mark.parametrize("limit", [None, GIB])
def test_a_roomy_pool_has_a_block_of_each_size_until_that_is_much(
    device: Device, stream: Stream, limit: int | None
) -> None:
    """As long as a stream has not more free than a 64th of what the pool may have."""
    kept = (limit or device.memory_info().total) // 64
    with Pool(device=device, background=False, limit=limit, thread_cache_max_blocks=0) as pool:
        largest = 0
        for pages in range(2, 40):
            largest = 2 * MIB * pages
            before = pool.stats().reserved
            pool.free(pool.malloc(largest, stream))
            if before <= kept:
                assert pool.stats().reserved == before + largest
        assert pool.stats().reserved <= kept + 2 * largest
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
