"""The background thread: it does what step() does, and ends with its pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from vramkit import Pool
from vramkit.driver import Device, Driver, Simulator

from .graphs import Graphs
from .support import MIB, Foreign, ahead_bytes, calls, eventually, idle_ranges

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(clock="wall")]


def threads() -> int:
    """Background threads of pools in this process."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except FileNotFoundError:
            continue  # it has ended meanwhile
    return names.count("vramkit-pool")


@pytest.fixture
def maintained(device: Device) -> Iterator[Pool]:
    before = threads()
    with Pool(device=device, decay_ms=20, defrag_interval_ms=5) as pool:
        yield pool
    assert eventually(lambda: threads() == before)


def test_the_thread_begins_and_ends_with_the_pool(device: Device) -> None:
    before = threads()
    pool = Pool(device=device)
    assert eventually(lambda: threads() == before + 1)
    pool.close()
    assert threads() == before


def test_some_memory_is_mapped_with_the_pool_and_goes_unused(
    device: Device, sim: Simulator
) -> None:
    with Pool(device=device, decay_ms=20) as pool:
        assert pool.stats().peak_reserved == ahead_bytes(device)
        assert eventually(lambda: pool.stats().reserved == 0)
    with Pool(device=device) as pool:
        calls(sim)
        pool.free(pool.malloc(4096))
        assert "cuMemCreate" not in calls(sim)
    with Pool(device=device, limit=2 * MIB) as pool:
        pool.free(pool.malloc(2 * MIB))  # it does not stand in the way


def test_a_pool_on_a_card_that_is_nearly_full_maps_nothing(device: Device) -> None:
    held = device.alloc(device.memory_info().free - device.memory_info().total // 20)
    with Pool(device=device) as pool:
        assert pool.stats().reserved == 0
    held.close()


def test_without_background_there_is_none(device: Device) -> None:
    before = threads()
    with Pool(device=device, background=False) as pool:
        pool.free(pool.malloc(4096))
        assert threads() == before


def test_a_dropped_pool_takes_its_thread_along(device: Device) -> None:
    before = threads()
    pool = Pool(device=device)
    pool.malloc(4096)
    assert eventually(lambda: threads() == before + 1)
    del pool
    assert threads() == before


def test_it_gives_idle_memory_back(maintained: Pool, device: Device) -> None:
    with device.stream() as stream:
        blocks = [
            maintained.malloc(size, stream) for size in (256, 5000, MIB, 30 * MIB) for _ in "12"
        ]
        for address in blocks:
            device.fill(address, 1, 256, stream=stream)
            maintained.free(address)
        assert eventually(lambda: maintained.stats().reserved == 0)


def test_it_joins_idle_memory(device: Device) -> None:
    with Pool(device=device, decay_ms=None, defrag_interval_ms=5) as pool:
        with device.stream() as stream:
            blocks = [pool.malloc(4 * MIB, stream) for _ in range(16)]
            for address in blocks[::2]:
                pool.free(address)
            device.synchronize()

        def joined() -> bool:
            pool.free(pool.malloc(12 * MIB))  # has three of the pieces; the others are too small
            return [nbytes for _, nbytes in idle_ranges(pool)] == [20 * MIB]

        assert eventually(joined)
        for address in blocks[1::2]:
            pool.free(address)


def test_it_maps_ahead(device: Device) -> None:
    with Pool(device=device, decay_ms=None) as pool:
        ahead = ahead_bytes(device)
        first = pool.malloc(ahead)  # all that was mapped
        second = pool.malloc(4096)  # the driver is asked, and the thread asks it for more
        assert eventually(lambda: pool.stats().reserved == ahead + 6 * MIB)
        pool.free(first)
        pool.free(second)


def test_new_settings_wake_it(device: Device) -> None:
    with Pool(device=device) as pool:
        pool.free(pool.malloc(4 * MIB))
        pool.configure(decay_ms=20)
        assert eventually(lambda: pool.stats().reserved == 0)


def test_captures_survive_it(maintained: Pool, device: Device, driver: Driver) -> None:
    graphs = Graphs(driver)
    with device.stream() as stream, device.stream() as other:
        maintained.free(maintained.malloc(4096, stream))
        for _ in range(20):
            with graphs.capture(stream) as graph:
                returned = maintained.stats().released_bytes
                maintained.free(maintained.malloc(4096, Foreign(stream)))
                maintained.free(maintained.malloc(8 * MIB, other))
                assert eventually(
                    lambda before=returned: maintained.stats().released_bytes > before
                )
            assert graph.nodes() == 0
    graphs.close()
    assert eventually(lambda: maintained.stats().captures == 0)


def test_a_reset_of_the_simulated_gpu_ends_it(device: Device, driver: Driver) -> None:
    before = threads()
    pool = Pool(device=device)
    pool.malloc(4096)
    assert eventually(lambda: threads() == before + 1)
    assert driver.sim is not None
    driver.sim.reset(clock="wall")
    assert threads() == before
    assert pool.closed
