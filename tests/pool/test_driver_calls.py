"""What each path asks of the driver, counted."""

from __future__ import annotations

import pytest

from vramkit import Pool
from vramkit.driver import Device, Driver, Simulator, Stream
from vramkit.pool import Buffer

pytestmark = pytest.mark.sim_only

MIB = 1 << 20
GROWTH = {"cuMemCreate": 1, "cuMemMap": 1, "cuMemSetAccess": 1}
# Entering and leaving a slow path: the context, and a capture mode in which nothing breaks.
SCOPE = {"cuCtxGetCurrent", "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"}


@pytest.fixture
def sim(driver: Driver) -> Simulator:
    assert driver.sim is not None
    return driver.sim


def calls(sim: Simulator) -> dict[str, int]:
    """Calls since the last look, without scopes and what the pool tells the checker."""
    counts = sim.call_counts()
    sim.reset_call_counts()
    return {
        call: count
        for call, count in counts.items()
        if count and call not in SCOPE and not call.startswith("simBlock")
    }


def test_a_pair_from_the_cache_makes_none_at_all(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    with device.stream() as stream:
        pool.free(pool.malloc(4096, stream))
        sim.reset_call_counts()
        for _ in range(100):
            pool.free(pool.malloc(4000, stream))
            Buffer(pool, 4096, stream).close()
        counts = sim.call_counts()
        assert {call for call, count in counts.items() if count} == {
            "simBlockAlloc",
            "simBlockFree",
        }
        for _ in range(10):  # the legacy stream needs no question either
            pool.free(pool.malloc(4096))
        calls(sim)
        pool.free(pool.malloc(4096))
        assert calls(sim) == {}


def test_a_raw_handle_costs_one_question(pool: Pool, device: Device, sim: Simulator) -> None:
    class Foreign:
        def __cuda_stream__(self) -> tuple[int, int]:
            return stream.__cuda_stream__()

    with device.stream() as stream:
        foreign = Foreign()
        pool.free(pool.malloc(4096, foreign))
        calls(sim)
        pool.free(pool.malloc(4096, foreign))
        assert calls(sim) == {"cuStreamGetId": 1}


def test_growth_is_three_calls(pool: Pool, device: Device, sim: Simulator) -> None:
    with device.stream() as stream:
        pool.free(pool.malloc(256, stream))  # the stream is known
        calls(sim)
        for size in (4096, 300_000, 2 * MIB, 100 * MIB):
            address = pool.malloc(size, stream)
            assert calls(sim) == GROWTH, size
            pool.free(address)
            calls(sim)


def test_a_new_stream_is_looked_at_once(pool: Pool, device: Device, sim: Simulator) -> None:
    pool.free(pool.malloc(4096))
    with device.stream() as stream:
        calls(sim)
        address = pool.malloc(4096, stream)  # fresh blocks of the same class are there
        assert calls(sim) == {"cuStreamGetCtx": 1}
        pool.free(address)


@pytest.mark.parametrize(
    ("foreign", "expected"), [(False, {}), (True, {"cuEventCreate": 1, "cuEventRecord": 1})]
)
def test_a_spill_records_one_event_where_the_stream_may_vanish_unseen(
    pool: Pool, device: Device, sim: Simulator, foreign: bool, expected: dict[str, int]
) -> None:
    pool.configure(thread_cache_max_blocks=8)
    with device.stream() as owner:
        stream = Stream.from_handle(device, owner.handle) if foreign else owner
        blocks = [pool.malloc(4096, stream) for _ in range(9)]
        while pool.stats().cached < 8 * 4096:
            pool.free(blocks.pop())
        calls(sim)
        pool.free(blocks.pop())
        assert calls(sim) == expected
        for address in blocks:
            pool.free(address)


def test_the_way_back_from_the_shared_level_is_free_on_the_same_stream(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    pool.configure(thread_cache_max_blocks=0)
    with device.stream() as stream:
        pool.free(pool.malloc(2 * MIB, stream))
        calls(sim)
        address = pool.malloc(2 * MIB, stream)
        assert calls(sim) == {}
        pool.free(address)


def test_another_stream_needs_the_mark_and_asks_whether_it_has_passed(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    pool.configure(thread_cache_max_blocks=0)
    with device.stream() as stream, device.stream() as other:
        pool.free(pool.malloc(256, other))
        address = pool.malloc(2 * MIB, stream)
        pool.free(address)
        device.synchronize()
        calls(sim)
        assert pool.malloc(2 * MIB, other) == address
        assert calls(sim) == {"cuEventCreate": 1, "cuEventRecord": 1, "cuEventQuery": 1}
        pool.free(address)


def test_a_chunk_goes_back_by_two_calls(pool: Pool, device: Device, sim: Simulator) -> None:
    with device.stream() as stream:
        pool.free(pool.malloc(8 * MIB, stream))
        calls(sim)
        assert pool.release_all() == 8 * MIB
        assert calls(sim) == {
            "cuEventCreate": 1,
            "cuEventRecord": 1,
            "cuEventSynchronize": 1,
            "cuEventDestroy_v2": 1,
            "cuMemUnmap": 1,
            "cuMemRelease": 1,
        }
