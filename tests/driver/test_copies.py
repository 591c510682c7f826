"""Copies and fills between all kinds of places."""

from __future__ import annotations

import array
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from vramkit import Pool
from vramkit.driver import ClosedError, Device, Driver, DriverError, Span

DATA = bytes(range(256)) * 16


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", ["pageable", "pinned", "registered"])
def test_bytes_go_to_the_device_and_come_back(device: Device, kind: str, streamed: bool) -> None:
    with (
        device.alloc(len(DATA)) as memory,
        device.alloc(len(DATA)) as other,
        device.alloc_pinned(len(DATA)) as pinned,
        device.register(bytearray(len(DATA) + 4096), nbytes=len(DATA)) as registered,
        device.stream() as queue,
    ):
        stream = queue if streamed else None
        place: Any = {"pageable": bytearray(DATA), "pinned": pinned, "registered": registered}[kind]
        if kind != "pageable":
            place.write(DATA)
        device.copy(memory, place, stream=stream)
        device.copy(other, memory, stream=stream)
        device.synchronize()
        device.fill(memory, 0, stream=stream)
        if kind != "pageable":
            place.write(bytes(len(DATA)))
        else:
            place[:] = bytes(len(DATA))
        device.copy(place, other, stream=stream)
        device.synchronize()
        assert (bytes(place) if kind == "pageable" else place.read()) == DATA


def test_host_to_host(device: Device) -> None:
    with device.alloc_pinned(4) as pinned:
        device.copy(pinned, b"host")
        out = bytearray(4)
        device.copy(out, pinned)
        assert out == b"host"


@pytest.mark.parametrize(
    "source",
    [
        b"abcdefgh",
        memoryview(b"abcdefgh"),
        array.array("b", b"abcdefgh"),
        numpy.arange(8, dtype="u1"),
    ],
    ids=lambda source: type(source).__name__,
)
def test_any_buffer_object_is_a_source(device: Device, source: Any) -> None:
    with device.alloc(8) as memory:
        device.copy(memory, source)
        out = numpy.zeros(8, dtype="u1")
        device.copy(out, memory)
        assert out.tobytes() == bytes(source)


def test_addresses_and_spans_are_places(device: Device) -> None:
    with device.alloc(8) as memory, device.alloc_pinned(8) as pinned:
        pinned.write(b"12345678")
        device.copy(memory.address, pinned.address, 8)
        device.copy(Span(pinned.address, 4), Span(memory.address + 4, 4))
        device.synchronize()
        assert pinned.read() == b"56785678"


def test_buffers_of_a_pool_and_parts_of_them_are_places(driver: Driver, device: Device) -> None:
    with (
        Pool(device=device, background=False) as pool,
        device.alloc_pinned(16) as pinned,
        device.stream() as stream,
        pool.allocate(16, stream=stream) as buffer,
        pool.allocate(16, stream=stream) as other,
    ):
        pinned.write(b"0123456789abcdef")
        if driver.sim is not None:
            driver.sim.reset_call_counts()
        device.copy(buffer, pinned, stream=stream)
        device.copy(other, buffer, stream=stream)
        device.copy(other.at(4, 8), buffer.at(8), stream=stream)
        device.copy(pinned, other, stream=stream)
        stream.synchronize()
        assert pinned.read() == b"012389abcdefcdef"
        if driver.sim is not None:
            assert "cuPointerGetAttribute" not in driver.sim.call_counts()
        assert buffer.at(4, 8) == Span(buffer.address + 4, 8, "device")
        assert buffer.at(16) == Span(buffer.address + 16, 0, "device")
        for offset, nbytes in ((17, None), (0, 17), (9, 8)):
            with pytest.raises(ValueError, match="the Buffer has 16 bytes"):
                buffer.at(offset, nbytes)
        buffer.close()
        with pytest.raises(ClosedError, match="Buffer is closed"):
            device.copy(pinned, buffer)
        with pytest.raises(ClosedError, match="Buffer is closed"):
            buffer.at()


def test_whatever_has_an_address_and_a_size_is_a_place(device: Device) -> None:
    with device.alloc(8) as memory, device.alloc_pinned(8) as pinned:
        pinned.write(b"12345678")
        device.copy(
            SimpleNamespace(address=memory.address, nbytes=8),
            SimpleNamespace(address=numpy.uint64(pinned.address), nbytes=numpy.int64(8)),
        )
        pinned.write(bytes(8))
        device.copy(pinned, memory)
        device.synchronize()
        assert pinned.read() == b"12345678"
        with pytest.raises(TypeError, match="the address of src is 'here'; it may be an integer"):
            device.copy(pinned, SimpleNamespace(address="here", nbytes=8))


def test_size_is_that_of_the_source_and_must_fit(device: Device) -> None:
    with device.alloc(8) as memory:
        device.fill(memory, 1)
        device.copy(memory, b"ab")
        out = bytearray(8)
        device.copy(out, memory)
        assert out == b"ab" + b"\1" * 6
        device.copy(out, memory, 1)
        for nbytes, text in ((None, "destination has 4"), (9, "destination has 4")):
            with pytest.raises(ValueError, match=text):
                device.copy(bytearray(4), memory, nbytes)
        with pytest.raises(ValueError, match="source has 2"):
            device.copy(memory, b"ab", 3)
        with pytest.raises(TypeError, match="needs nbytes"):
            device.copy(memory.address, memory.address)
        with pytest.raises(ValueError, match="nbytes is -1; it may be an integer from 0"):
            device.copy(memory, b"ab", -1)


def test_what_is_no_place_is_refused(device: Device) -> None:
    with device.alloc(8) as memory:
        with pytest.raises(TypeError):
            device.copy(memory, "text")  # type: ignore[arg-type]
        with pytest.raises(BufferError):
            device.copy(b"12345678", memory)
        with pytest.raises((BufferError, ValueError)):
            device.copy(memory, numpy.zeros((4, 4), dtype="u1")[:, 1])


def test_stale_address_is_the_drivers_error(device: Device) -> None:
    memory = device.alloc(64 << 20)  # a real driver keeps small blocks mapped for their next use
    address = memory.address
    memory.close()
    with pytest.raises(DriverError) as caught:
        device.copy(bytearray(8), address)
    assert (caught.value.code, caught.value.call) == (1, "cuMemcpyDtoH_v2")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("width", "value"), [(1, 0xAB), (2, 0xABCD), (4, 0xABCDEF01)])
def test_fill_sets_words(device: Device, width: int, value: int, streamed: bool) -> None:
    with device.alloc(16) as memory, device.stream() as stream:
        device.fill(memory, 0)
        device.synchronize()
        device.fill(memory.at(4, 8), value, width=width, stream=stream if streamed else None)
        device.synchronize()
        out = bytearray(16)
        device.copy(out, memory)
        assert out == bytes(4) + value.to_bytes(width, "little") * (8 // width) + bytes(4)


def test_bad_fills_are_refused(device: Device) -> None:
    with device.alloc(8) as memory:
        for value, width, nbytes, text in (
            (256, 1, None, "value is 256; it may be an integer from 0 to 255"),
            (-1, 4, None, "value is -1; it may be an integer from 0 to 4294967295"),
            (0, 3, None, "1, 2 or 4"),
            (0, 4, 6, "multiple"),
            (0, 1, 9, "has 8"),
        ):
            with pytest.raises(ValueError, match=text):
                device.fill(memory, value, nbytes, width=width)
        with pytest.raises(TypeError, match="needs nbytes"):
            device.fill(memory.address, 0)
