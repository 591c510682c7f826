"""Streams of all kinds: default ones, foreign ones, and those that end before their blocks."""

from __future__ import annotations

import threading

import pytest

from vramkit import Pool
from vramkit.driver import Device, Driver

from .support import MIB, Foreign, legacy_streams


def test_no_stream_is_the_legacy_default_stream(pool: Pool, device: Device) -> None:
    address = pool.malloc(4096)
    device.fill(address, 1, 4096, stream=device.legacy_stream)
    pool.free(address)
    for stream in legacy_streams(device):
        assert pool.malloc(4096, stream) == address
        pool.free(address, stream=stream)


@pytest.mark.sim_only
@pytest.mark.sim(devices=2)
def test_the_legacy_stream_is_that_of_the_pools_card(driver: Driver) -> None:
    """Also where the thread uses another card: the checker is told of the stream that has the
    block."""
    driver.device(0).synchronize()
    device = driver.device(1)
    with Pool(device=device, limit=16 * MIB, background=False) as pool, device.stream() as stream:
        large = pool.malloc(15 * MIB)
        device.fill(large, 1, 15 * MIB, stream=device.legacy_stream)
        pool.free(large)
        block = pool.malloc(MIB, stream)
        device.fill(block, 1, MIB, stream=stream)
        pool.free(block, stream=stream)
        pool.free(pool.malloc(15 * MIB))


def test_a_foreign_stream_is_known_by_its_id(pool: Pool, device: Device) -> None:
    with device.stream() as stream:
        address = pool.malloc(4096, Foreign(stream))
        device.fill(address, 1, 4096, stream=Foreign(stream))
        pool.free(address)
        assert pool.malloc(4096, stream) == address  # one cache for both
        pool.free(address, stream=Foreign(stream))


def test_each_thread_has_its_own_per_thread_stream(pool: Pool, device: Device) -> None:
    """Allocated on one thread, freed on another: the other's default stream never has the block
    before the first one's work is done."""
    pool.configure(thread_cache_max_blocks=0)
    stream = device.per_thread_stream
    address = pool.malloc(2 * MIB, stream)
    device.kernels.spin(1_000_000, stream=stream)
    device.fill(address, 1, 2 * MIB, stream=stream)

    def free_and_ask() -> None:
        pool.free(address)
        other = pool.malloc(2 * MIB, stream)
        device.fill(other, 2, 2 * MIB, stream=stream)
        pool.free(other)

    thread = threading.Thread(target=free_and_ask)
    thread.start()
    thread.join()
    assert pool.stats().current_usage == 0


def test_blocks_outlive_their_stream(pool: Pool, device: Device) -> None:
    stream = device.stream()
    sizes = [4096, 4096, 2 * MIB, 40 * MIB]
    blocks = [pool.malloc(size, stream) for size in sizes]
    device.kernels.spin(1_000_000, stream=stream)
    for address, size in zip(blocks, sizes, strict=True):
        device.fill(address, 1, size, stream=stream)
    pool.free(blocks[0])
    stream.close()
    for address in blocks[1:]:
        pool.free(address)
    assert pool.check_invariants() == ""
    with device.stream() as other:
        for size in sizes:
            address = pool.malloc(size, other)
            device.fill(address, 2, size, stream=other)
            pool.free(address)
        pool.release_all()
        assert pool.stats().reserved == 0


@pytest.mark.sim_only
def test_a_block_freed_after_its_stream_ended_waits_for_that_streams_work(
    pool: Pool, driver: Driver, device: Device
) -> None:
    assert driver.sim is not None
    stream = device.stream()
    address = pool.malloc(2 * MIB, stream)
    device.kernels.spin(10**9, stream=stream)
    device.fill(address, 1, 2 * MIB, stream=stream)
    stream.close()
    with device.stream() as other:  # may well have the handle of the one that is gone
        thread = threading.Thread(target=pool.free, args=(address,))
        thread.start()
        thread.join()
        different = pool.malloc(2 * MIB, other)
        assert different != address
        device.fill(different, 1, 2 * MIB, stream=other)
        other.synchronize()
        assert pool.trim() == 0
        driver.sim.advance(2.0)
        assert pool.malloc(2 * MIB, other) == address
        device.fill(address, 1, 2 * MIB, stream=other)
        pool.free(address)
        pool.free(different)


@pytest.mark.sim_only
def test_ever_new_streams_leave_nothing_behind(pool: Pool, driver: Driver, device: Device) -> None:
    assert driver.sim is not None
    for _ in range(200):
        with device.stream() as stream:
            address = pool.malloc(4096, stream)
            device.fill(address, 1, 4096, stream=stream)
            pool.free(address)
            device.synchronize()
    assert driver.sim.live_objects()["events"] <= 4
    assert pool.stats().allocation_count == pool.stats().free_count == 200
    assert pool.stats().reserved == 2 * MIB


def test_a_stream_that_python_drops_is_told_as_one_that_is_closed(
    pool: Pool, device: Device
) -> None:
    stream = device.stream()
    address = pool.malloc(4 * MIB, stream)
    device.fill(address, 1, 4 * MIB, stream=stream)
    pool.free(address)
    del stream
    pool.release_all()
    assert pool.stats().reserved == 0
