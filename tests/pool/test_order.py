"""Stream order: the checker sees nothing where the pool and its user keep it, and all the rest."""

from __future__ import annotations

import threading

import pytest

from vramkit import Pool
from vramkit.driver import Device, Driver

from .support import MIB, Foreign


def use(device: Device, address: int, nbytes: int, stream: object) -> None:
    device.fill(address, 1, nbytes, stream=stream)  # type: ignore[arg-type]


def test_freeing_on_another_stream_behind_an_event(pool: Pool, device: Device) -> None:
    with device.stream() as first, device.stream() as second:
        address = pool.malloc(4096, first)
        use(device, address, 4096, first)
        second.wait(first)
        use(device, address, 4096, second)
        pool.free(address, stream=second)
        again = pool.malloc(4096, second)
        assert again == address  # it is the second stream's now
        use(device, again, 4096, second)
        pool.free(again)


@pytest.mark.sim_only
@pytest.mark.expects_reports
def test_freeing_on_another_stream_without_the_event_is_reported(
    pool: Pool, driver: Driver, device: Device
) -> None:
    with device.stream() as first, device.stream() as second:
        address = pool.malloc(4096, first)
        device.kernels.spin(1_000_000, stream=first)
        use(device, address, 4096, first)
        pool.free(address, stream=second)
        assert driver.sim is not None
        (report,) = driver.sim.reports()
        assert (report.kind, report.second.access) == ("race", "free")
        assert (report.first.stream, report.second.stream) == (first.id, second.id)


@pytest.mark.sim_only
@pytest.mark.expects_reports
def test_use_after_free_is_reported(pool: Pool, driver: Driver, device: Device) -> None:
    with device.stream() as stream:
        address = pool.malloc(4096, stream)
        pool.free(address)
        use(device, address, 4096, stream)
        assert driver.sim is not None
        assert [report.kind for report in driver.sim.reports()] == ["use_after_free"]


@pytest.mark.sim_only
def test_another_stream_does_not_get_a_block_whose_work_is_under_way(
    pool: Pool, device: Device
) -> None:
    pool.configure(thread_cache_max_blocks=0)  # every free reaches the shared level
    with device.stream() as busy, device.stream() as other:
        address = pool.malloc(2 * MIB, busy)
        device.kernels.spin(10**9, stream=busy)
        use(device, address, 2 * MIB, busy)
        pool.free(address)
        second = pool.malloc(2 * MIB, other)
        assert second != address
        use(device, second, 2 * MIB, other)
        busy.synchronize()
        third = pool.malloc(2 * MIB, other)
        assert third == address
        use(device, third, 2 * MIB, other)
        pool.free(second)
        pool.free(third)


@pytest.mark.sim_only
def test_short_of_memory_the_stream_waits_and_not_the_host(
    pool: Pool, driver: Driver, device: Device
) -> None:
    pool.configure(limit=2 * MIB)
    with device.stream() as busy, device.stream() as other:
        address = pool.malloc(2 * MIB, busy)
        device.kernels.spin(10**9, stream=busy)
        use(device, address, 2 * MIB, busy)
        pool.free(address)
        assert driver.sim is not None
        before = driver.sim.now()
        again = pool.malloc(2 * MIB, other)
        assert driver.sim.now() - before < 0.001
        use(device, again, 2 * MIB, other)
        other.synchronize()
        assert driver.sim.now() - before > 0.9
        pool.free(again)


@pytest.mark.sim_only
@pytest.mark.parametrize("size", [4096, MIB])
def test_memory_of_a_busy_stream_serves_other_sizes_of_that_stream_without_a_wait(
    pool: Pool, driver: Driver, device: Device, size: int
) -> None:
    pool.configure(limit=4 * MIB)
    with device.stream() as stream:
        address = pool.malloc(4 * MIB, stream)
        device.kernels.spin(10**9, stream=stream)
        use(device, address, 4 * MIB, stream)
        pool.free(address)
        assert driver.sim is not None
        before = driver.sim.now()
        again = pool.malloc(size, stream)
        assert address <= again < address + 4 * MIB
        assert driver.sim.now() - before < 0.001
        use(device, again, size, stream)
        pool.free(again)


@pytest.mark.sim_only
def test_short_of_memory_the_host_waits_before_another_stream_has_memory_in_pieces(
    pool: Pool, driver: Driver, device: Device
) -> None:
    """No block is large enough to wait for on the GPU."""
    pool.configure(limit=12 * MIB)
    with device.stream() as busy, device.stream() as other:
        blocks = [pool.malloc(4 * MIB, busy) for _ in range(3)]
        device.kernels.spin(10**9, stream=busy)
        for address in blocks:
            use(device, address, 4 * MIB, busy)
        pool.free(blocks[0])
        pool.free(blocks[2])
        assert driver.sim is not None
        before = driver.sim.now()
        again = pool.malloc(8 * MIB, other)
        assert driver.sim.now() - before > 0.9
        assert (pool.stats().remap_hits, pool.stats().reserved) == (1, 12 * MIB)
        use(device, again, 8 * MIB, other)
        pool.free(again)
        pool.free(blocks[1])


@pytest.mark.sim_only
def test_large_blocks_of_busy_streams_are_not_unmapped_by_a_full_shared_level(
    pool: Pool, device: Device
) -> None:
    pool.configure(thread_cache_max_blocks=0, global_cache_max_blocks=0)
    with device.stream() as stream:
        address = pool.malloc(4 * MIB, stream)
        device.kernels.spin(10**9, stream=stream)
        use(device, address, 4 * MIB, stream)
        pool.free(address)  # over the bound at once
        assert pool.stats().reserved == 4 * MIB
        stream.synchronize()
        pool.free(pool.malloc(4 * MIB, stream))
        stream.synchronize()
        pool.trim()
        assert pool.stats().reserved == 0


def test_the_same_stream_has_a_block_again_from_another_thread(pool: Pool, device: Device) -> None:
    pool.configure(thread_cache_max_blocks=0)
    found = []
    with device.stream() as stream:
        address = pool.malloc(2 * MIB, stream)
        device.kernels.spin(1_000_000, stream=stream)
        use(device, address, 2 * MIB, stream)
        pool.free(address)

        def ask() -> None:
            found.append(pool.malloc(2 * MIB, stream))
            use(device, found[0], 2 * MIB, stream)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert found == [address]
        pool.free(address)


def test_free_from_another_thread(pool: Pool, device: Device) -> None:
    with device.stream() as stream:
        address = pool.malloc(4096, stream)
        use(device, address, 4096, stream)
        thread = threading.Thread(target=pool.free, args=(address, 4096))
        thread.start()
        thread.join()
        stats = pool.stats()
        assert (stats.current_usage, stats.free_count) == (0, 1)
        with pytest.raises(ValueError, match="freed twice"):
            pool.free(address)


@pytest.mark.sim_only
def test_short_of_memory_a_raw_stream_is_waited_for_and_not_the_card(
    pool: Pool, driver: Driver, device: Device
) -> None:
    assert driver.sim is not None
    pool.configure(limit=4 * MIB)
    with device.stream() as owner, device.stream() as busy:
        device.kernels.spin(10**9, stream=busy)
        stream = Foreign(owner)
        pool.free(pool.malloc(4 * MIB, stream))
        before = driver.sim.now()
        pool.free(pool.malloc(MIB, stream))
        assert driver.sim.now() - before < 0.1
        assert "cuMemFree_v2" not in driver.sim.call_counts()
