"""Device, pinned and registered memory: what the objects tell and refuse."""

from __future__ import annotations

import ctypes
import gc
import mmap

import numpy
import pytest

from vramkit.driver import Driver, DriverError, Span


def test_memory_is_counted_and_given_back(driver: Driver) -> None:
    device = driver.device()
    before = device.memory_info()
    assert 0 < before.free <= before.total
    with device.alloc(64 << 20) as memory:
        assert (memory.nbytes, memory.device) == (64 << 20, device)
        assert device.memory_info().free <= before.free - (64 << 20)
    assert device.memory_info().free == before.free


def test_part_of_memory_is_a_span(driver: Driver) -> None:
    with driver.device().alloc(100) as memory:
        assert memory.at(10, 20)[:2] == (memory.address + 10, 20)
        assert memory.at(10).nbytes == 90
        assert memory.at(10).at(5, 6)[:2] == (memory.address + 15, 6)
        assert memory.at(100).nbytes == 0
        for offset, nbytes in ((101, None), (90, 11), (-1, 1), (0, -1)):
            with pytest.raises(ValueError):
                memory.at(offset, nbytes)


@pytest.mark.parametrize("method", ["alloc", "alloc_pinned", "reserve", "create"])
def test_negative_sizes_are_refused(driver: Driver, method: str) -> None:
    with pytest.raises(ValueError, match="nbytes is -1"):
        getattr(driver.device(), method)(-1)


def test_pinned_memory_is_read_and_written(driver: Driver) -> None:
    with driver.device().alloc_pinned(16) as pinned:
        pinned.write(bytes(range(16)))
        pinned.write(numpy.array([7, 8], dtype="<u2"), offset=4)
        assert pinned.read() == bytes([0, 1, 2, 3, 7, 0, 8, 0, *range(8, 16)])
        assert pinned.read(14) == b"\x0e\x0f"
        with pytest.raises(ValueError):
            pinned.write(b"abc", offset=14)
        with pytest.raises(ValueError):
            pinned.read(0, 17)


def test_view_shares_the_memory(driver: Driver) -> None:
    with driver.device().alloc_pinned(16) as pinned:
        pinned.write(bytes(16))
        view = pinned.view(4, 8)
        view[0] = 9
        assert (len(view), pinned.read(4, 1)) == (8, b"\t")
        with pytest.raises(TypeError):
            pinned.view(readonly=True)[0] = 1


def test_closing_releases_views(driver: Driver) -> None:
    pinned = driver.device().alloc_pinned(16)
    view = pinned.view()
    pinned.close()
    with pytest.raises(ValueError, match="released"):
        view[0]


def test_memory_that_somebody_looks_at_stays_open(driver: Driver) -> None:
    pinned = driver.device().alloc_pinned(16)
    array = numpy.frombuffer(pinned.view(), dtype="u1")
    with pytest.raises(BufferError):
        pinned.close()
    assert not pinned.closed
    array[0] = 5
    assert pinned.read(0, 1) == b"\5"
    del array
    gc.collect()
    pinned.close()


def test_slice_of_a_view_keeps_memory_open(driver: Driver) -> None:
    pinned = driver.device().alloc_pinned(16)
    part = pinned.view()[2:4]
    with pytest.raises(BufferError, match="in use"):
        pinned.close()
    part.release()
    pinned.close()


def test_registered_buffer_is_the_callers_memory(driver: Driver) -> None:
    device = driver.device()
    buffer = bytearray(1 << 16)
    with device.register(buffer) as registered, device.alloc(4) as memory:
        assert registered.nbytes == len(buffer)
        registered.write(b"abcd", offset=8)
        assert buffer[8:12] == b"abcd"
        with device.stream() as stream:
            device.copy(memory, registered.at(8, 4), stream=stream)
            device.copy(registered.at(16, 4), memory, stream=stream)
            stream.synchronize()
        assert registered.read(16, 4) == b"abcd"
        with pytest.raises(BufferError):
            buffer.append(0)
    buffer.append(0)


def test_registering_by_address(driver: Driver) -> None:
    device = driver.device()
    with mmap.mmap(-1, 1 << 16) as pages:
        start = ctypes.c_char.from_buffer(pages)
        address = ctypes.addressof(start)
        with device.register(address, nbytes=1 << 16) as registered:
            assert registered.address == address
            registered.write(b"here")
        assert pages[:4] == b"here"
        del start
    with pytest.raises(TypeError, match="nbytes"):
        device.register(address)


def test_registering_twice_is_the_drivers_error(driver: Driver) -> None:
    device = driver.device()
    buffer = bytearray(1 << 16)
    with device.register(buffer), pytest.raises(DriverError) as caught:
        device.register(buffer)
    assert caught.value.name == "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"


def test_read_only_buffer_cannot_be_registered(driver: Driver) -> None:
    with pytest.raises(BufferError):
        driver.device().register(bytes(1 << 16))


def test_span_knows_nothing_but_its_range() -> None:
    assert Span(16, 8) == (16, 8, None)


# Virtual memory


def test_physical_memory_is_mapped_used_and_mapped_elsewhere(driver: Driver) -> None:
    device = driver.device()
    unit = device.granularity
    assert unit >= 1 << 16
    with device.reserve(3 * unit) as addresses, device.create(unit) as physical:
        addresses.map(physical, unit)
        addresses.set_access(unit, unit)
        device.copy(addresses.at(unit, 5), b"bytes")
        device.synchronize()
        addresses.map(physical, 2 * unit)
        addresses.set_access(2 * unit, unit)
        addresses.unmap(unit, unit)
        out = bytearray(5)
        device.copy(out, addresses.at(2 * unit, 5))
        assert out == b"bytes"
        addresses.unmap(2 * unit, unit)


def test_unmapped_addresses_give_the_drivers_error(driver: Driver) -> None:
    device = driver.device()
    with device.reserve(device.granularity) as addresses, pytest.raises(DriverError) as caught:
        device.copy(bytearray(4), addresses.at(0, 4))
    assert caught.value.code == 1


def test_closing_addresses_unmaps_what_is_left(driver: Driver) -> None:
    device = driver.device()
    unit = device.granularity
    with device.alloc(16) as memory:
        device.fill(memory, 1)  # a real driver takes memory of its own for the first one
        device.synchronize()
    free = device.memory_info().free
    with device.reserve(2 * unit) as addresses:
        for offset in (0, unit):
            with device.create(unit) as physical:
                addresses.map(physical, offset)
        addresses.set_access()
        device.fill(addresses, 1)
        device.synchronize()
        assert device.memory_info().free == free - 2 * unit
    assert device.memory_info().free == free


def test_mapping_outside_the_range_is_refused(driver: Driver) -> None:
    device = driver.device()
    unit = device.granularity
    with device.reserve(unit) as addresses, device.create(unit) as physical:
        with pytest.raises(ValueError, match="not inside"):
            addresses.map(physical, unit)
        physical.close()
        with pytest.raises(RuntimeError, match="PhysicalMemory is closed"):
            addresses.map(physical)
