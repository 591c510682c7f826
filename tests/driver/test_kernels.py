"""The built-in kernels compute the same on every driver."""

from __future__ import annotations

import numpy
import pytest

from vramkit.driver import Device, Driver, DriverError

COUNT = 100_003


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


def test_fill_add_and_checksum(device: Device) -> None:
    numbers = numpy.arange(COUNT, dtype="<u4") * numpy.uint32(2654435761)
    with (
        device.alloc(4 * COUNT) as a,
        device.alloc(4 * COUNT) as b,
        device.alloc(4 * COUNT) as total,
        device.alloc(8) as checksum,
        device.stream() as stream,
    ):
        device.copy(a, numbers, stream=stream)
        device.fill(checksum, 0, stream=stream)
        device.kernels.fill(b, COUNT, 0x80000001, stream=stream)
        device.kernels.add(total, a, b, COUNT, stream=stream)
        device.kernels.checksum(total, COUNT, checksum, stream=stream)
        out = numpy.zeros(COUNT, dtype="<u4")
        word = numpy.zeros(1, dtype="<u8")
        device.copy(out, total, stream=stream)
        device.copy(word, checksum, stream=stream)
        stream.synchronize()
    expected = numbers + numpy.uint32(0x80000001)
    assert (out == expected).all()
    assert int(word[0]) == int(expected.sum(dtype="u8"))


def test_geometry_does_not_change_the_result(device: Device) -> None:
    with device.alloc(4 * 1000) as data, device.stream() as stream:
        device.kernels.fill(data, 1000, 7, stream=stream, blocks=3, threads=64)
        out = numpy.zeros(1000, dtype="<u4")
        device.copy(out, data, stream=stream)
        stream.synchronize()
        assert (out == 7).all()


def test_sweep_runs_in_the_order_of_its_stream(device: Device) -> None:
    with device.alloc(4 * COUNT) as data, device.stream() as stream:
        device.kernels.fill(data, COUNT, 1, stream=stream)
        device.kernels.sweep(data, COUNT, 2, stream=stream)
        stream.synchronize()


def test_spin_takes_its_time(device: Device) -> None:
    with device.stream() as stream, stream.record() as begin:
        device.kernels.spin(5_000_000, stream=stream)
        assert not stream.query()
        with stream.record() as end:
            end.synchronize()
            assert end.elapsed_since(begin) >= 0.005


def test_bad_arguments_are_refused(device: Device) -> None:
    with device.alloc(16) as data, device.stream() as stream:
        with pytest.raises(ValueError, match="dst has 16"):
            device.kernels.fill(data, 5, 0, stream=stream)
        with pytest.raises(ValueError, match="from 0 to 4294967295"):
            device.kernels.fill(data, 4, 1 << 32, stream=stream)
        with pytest.raises(ValueError, match="nanoseconds is -1; it may be"):
            device.kernels.spin(-1, stream=stream)
        with pytest.raises(DriverError) as caught:
            device.kernels.spin(1, stream=stream, threads=100_000)
    assert caught.value.call == "cuLaunchKernel"


def test_attributes_by_name_and_number(device: Device) -> None:
    assert device.attribute("WARP_SIZE") == device.attribute(10) == 32
    assert device.attribute("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT") == device.multiprocessors
    assert device.compute_capability >= (5, 0)
    with pytest.raises(ValueError, match="WARP_SIZE"):
        device.attribute("WARPS")
    with pytest.raises(DriverError):
        device.attribute(100_000)


def test_device_tells_who_it_is(device: Device) -> None:
    assert device.name
    assert device.uuid.startswith("GPU-")
    assert len(device.uuid) == 40
    assert device.pci_bus_id.count(":") == 2
    assert device.memory_info().total <= device.total_memory
