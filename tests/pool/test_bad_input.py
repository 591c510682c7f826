"""Bad input is one clear exception each, and changes nothing."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from vramkit import Pool
from vramkit.driver import ClosedError, Device, Driver, DriverError, OutOfMemoryError

MIB = 1 << 20


@pytest.mark.parametrize("size", [0, -1, -(2**70), 2**40 + 1, 2**63, 2**64, 2**100])
def test_sizes_that_no_block_has(pool: Pool, size: int) -> None:
    for call in (pool.malloc, pool.try_malloc, pool.allocate, lambda n: pool.preallocate(n, 1)):
        with pytest.raises(ValueError, match=r"1 to 1099511627776"):
            call(size)
    assert pool.stats().reserved == 0


@pytest.mark.parametrize("size", [1.5, "4096", b"1", [1], None])
def test_sizes_that_are_no_integers(pool: Pool, size: Any) -> None:
    for call in (pool.malloc, pool.try_malloc, pool.allocate, lambda n: pool.preallocate(n, 1)):
        with pytest.raises(TypeError, match="integer"):
            call(size)


@pytest.mark.parametrize("count", [0, -1, 2**64])
def test_preallocate_takes_at_least_one_block(pool: Pool, count: int) -> None:
    with pytest.raises(ValueError, match="count is"):
        pool.preallocate(4096, count)


@pytest.mark.parametrize("address", [0, 1, -1, 256, 2**47, 2**64, 2**80])
def test_numbers_that_are_no_pointers(pool: Pool, address: int) -> None:
    with pytest.raises(ValueError, match="not of this pool"):
        pool.free(address)
    for none in (str(address), None):
        with pytest.raises(TypeError, match="integer"):
            pool.free(none)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="integer"):
            pool.also_used_on(none, None)  # type: ignore[arg-type]


def test_pointers_of_others(pool: Pool, device: Device) -> None:
    with device.alloc(4096) as memory, Pool(device=device, background=False) as other:
        address = other.malloc(4096)
        for foreign in (memory.address, address):
            with pytest.raises(ValueError, match="not of this pool"):
                pool.free(foreign)
        other.free(address)


@pytest.mark.parametrize("size", [1000, 5 * MIB])
def test_pointers_into_a_block(pool: Pool, size: int) -> None:
    address = pool.malloc(size)
    for offset in (1, 256, 999):
        with pytest.raises(ValueError, match="inside a block"):
            pool.free(address + offset)
    pool.free(address)


@pytest.mark.parametrize("size", [1000, 5 * MIB, 40 * MIB])
def test_freed_twice(pool: Pool, size: int) -> None:
    address, other = pool.malloc(size), pool.malloc(size)
    pool.free(address)
    with pytest.raises(ValueError, match="freed twice"):
        pool.free(address)
    pool.free(other)
    pool.release_all()
    with pytest.raises(ValueError, match="not of this pool"):
        pool.free(address)


@pytest.mark.parametrize("size", [1000, 5 * MIB])
def test_a_wrong_size(pool: Pool, size: int) -> None:
    address = pool.malloc(size)
    for wrong in (size - 1, size + 1, 2 * size):
        with pytest.raises(ValueError, match=f"the block has {size} bytes, not {wrong}"):
            pool.free(address, wrong)
    for none in (0, -5, 2**64):
        with pytest.raises(ValueError, match="size is"):
            pool.free(address, none)
    assert pool.stats().current_usage == size
    pool.free(address, size)


def test_a_closed_stream(pool: Pool, device: Device) -> None:
    stream = device.stream()
    address = pool.malloc(4096, stream)
    stream.close()
    with pytest.raises(ClosedError, match="Stream is closed"):
        pool.malloc(4096, stream)
    with pytest.raises(ClosedError, match="Stream is closed"):
        pool.free(address, stream=stream)
    assert pool.stats().current_usage == 4096
    pool.free(address)


@pytest.mark.sim_only
def test_a_handle_that_is_no_stream(pool: Pool) -> None:
    class Wrong:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 0xDEAD0

    with pytest.raises(DriverError, match="no such stream, or no longer: cuStreamGetId failed"):
        pool.malloc(4096, Wrong())


@pytest.mark.parametrize("given", ["cuda:0", "", 1.0, [0]])
def test_things_that_are_no_devices(given: Any) -> None:
    for use in (lambda: Pool(device=given), lambda: Pool.instance(given)):
        with pytest.raises(TypeError, match="; it may be a Device, an int or None"):
            use()


@pytest.mark.parametrize("number", [-1, 1000, 2**40, -(2**40)])
def test_devices_that_do_not_exist(driver: Driver, number: int) -> None:
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_DEVICE"):
        driver.device(number)


def test_use_after_close(pool: Pool) -> None:
    address = pool.malloc(4096)
    pool.free(address)
    pool.close()
    for call in (
        lambda: pool.malloc(4096),
        lambda: pool.try_malloc(4096),
        lambda: pool.allocate(4096),
        lambda: pool.free(address),
        lambda: pool.preallocate(4096, 1),
        lambda: pool.configure(limit=None),
        pool.trim,
        pool.release_all,
    ):
        with pytest.raises(ClosedError, match="the pool is closed"):
            call()
    assert pool.stats().allocation_count == 1


@pytest.mark.sim_only
def test_use_after_a_reset_of_the_simulated_gpu(driver: Driver, device: Device) -> None:
    pool = Pool(device=device, background=False)
    stream = device.stream()
    address = pool.malloc(4096, stream)
    buffer = pool.allocate(4096, stream=stream)
    pool.free(pool.malloc(4096, stream))
    assert driver.sim is not None
    driver.sim.reset()
    assert pool.closed
    for call in (
        lambda: pool.malloc(4096),
        lambda: pool.free(address),
        lambda: pool.preallocate(4096, 1),
        lambda: pool.configure(limit=None),
        pool.trim,
        pool.release_all,
        pool.stats,
        pool.reset_stats,
        pool.reset_peaks,
    ):
        with pytest.raises(ClosedError, match="the simulated GPU was reset"):
            call()
    buffer.close()
    pool.close()
    # A new stream may have the old one's number and handle; the old pool must not touch it.
    with Pool(device=device, background=False) as fresh, device.stream() as again:
        fresh.free(fresh.malloc(4096, again))
        driver.sim.reset_call_counts()
        again.close()
        assert driver.sim.call_counts()["cuEventRecord"] == 1


@pytest.mark.sim_only
def test_more_pools_than_there_are_addresses_for(device: Device) -> None:
    before = device.memory_info()
    with ExitStack() as pools:
        with pytest.raises(OutOfMemoryError, match="addresses are short, not memory"):
            while True:
                pools.enter_context(Pool(device=device, background=False))
        assert device.memory_info() == before
    Pool(device=device, background=False).close()  # those that are closed make room


def test_a_block_whose_slab_has_ended_was_freed_twice(device: Device) -> None:
    """The pointer lies inside free memory by then, not inside a block."""
    uncached = {"thread_cache_max_blocks": 0, "global_cache_max_blocks": 0, "batch_alloc_count": 1}
    pool = Pool(device=device, background=False, **uncached)
    first, second = pool.malloc(1), pool.malloc(1)
    pool.free(first)
    pool.free(second)
    assert pool.stats().slabs == 0
    for address in (first, second):
        with pytest.raises(ValueError, match="freed twice"):
            pool.free(address)
    pool.close()
