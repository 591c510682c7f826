"""Buffers: blocks that free themselves."""

from __future__ import annotations

import gc
import weakref

import pytest

from vramkit import Pool
from vramkit.driver import ClosedError, Device
from vramkit.pool import Buffer

MIB = 1 << 20


def test_a_buffer_is_its_block(pool: Pool, device: Device) -> None:
    with device.stream() as stream:
        buffer = pool.allocate(5000, stream=stream)
        assert isinstance(buffer, Buffer)
        assert (buffer.nbytes, len(buffer), buffer.stream) == (5000, 5000, stream)
        assert buffer.address % 256 == 0
        assert pool.stats().current_usage == 5000
        assert f"5000 bytes, at {buffer.address:#x}" in repr(buffer)
        buffer.close()
        buffer.close()
        assert buffer.closed
        assert pool.stats().free_count == 1
        assert "closed" in repr(buffer)
        with pytest.raises(ClosedError, match="this Buffer is closed"):
            _ = buffer.address


def test_a_buffer_is_freed_at_the_end_of_a_block_and_when_dropped(pool: Pool) -> None:
    with pool.allocate(4096):
        assert pool.stats().current_usage == 4096
    assert pool.stats().current_usage == 0
    buffer = pool.allocate(4096)
    del buffer
    assert pool.stats().current_usage == 0


def test_a_buffer_in_a_cycle_is_freed_by_the_collector(pool: Pool) -> None:
    buffer = pool.allocate(4096)
    holder = [buffer]
    holder.append(holder)  # type: ignore[arg-type]
    del buffer, holder
    gc.collect()
    assert pool.stats().current_usage == 0


def test_a_buffer_keeps_its_pool_and_its_stream_alive(device: Device) -> None:
    stream = device.stream()
    alive = weakref.ref(stream)
    buffer = Pool(device=device, background=False).allocate(2 * MIB, stream=stream)
    del stream
    gc.collect()
    assert alive() is not None
    device.fill(buffer.address, 1, 2 * MIB, stream=buffer.stream)  # type: ignore[arg-type]
    del buffer
    gc.collect()
    assert alive() is None


def test_a_buffer_may_be_freed_on_another_stream(pool: Pool, device: Device) -> None:
    with device.stream() as first, device.stream() as second:
        buffer = pool.allocate(4096, stream=first)
        address = buffer.address
        device.fill(address, 1, 4096, stream=first)
        second.wait(first)
        buffer.close(second)
        assert pool.malloc(4096, second) == address
        pool.free(address)


def test_a_refused_close_leaves_the_buffer_open(pool: Pool, device: Device) -> None:
    closed = device.stream()
    closed.close()
    buffer = pool.allocate(4096)
    with pytest.raises(TypeError):
        buffer.close("a stream")
    assert not buffer.closed
    buffer.close()


def test_a_buffer_outlives_its_closed_stream(pool: Pool, device: Device) -> None:
    stream = device.stream()
    buffer = pool.allocate(4096, stream=stream)
    device.fill(buffer.address, 1, 4096, stream=stream)
    stream.close()
    buffer.close()
    assert pool.stats().current_usage == 0


def test_the_cuda_array_interface(pool: Pool, device: Device) -> None:
    with device.stream() as stream, pool.allocate(1000, stream=stream) as buffer:
        assert buffer.__cuda_array_interface__ == {
            "shape": (1000,),
            "typestr": "|u1",
            "data": (buffer.address, False),
            "version": 3,
            "strides": None,
            "stream": stream.handle,
        }
    with pool.allocate(1000) as buffer:
        assert buffer.__cuda_array_interface__["stream"] == 1
    with pytest.raises(ClosedError):
        _ = buffer.__cuda_array_interface__


def test_a_failed_allocation_leaves_no_buffer(pool: Pool) -> None:
    with pytest.raises(ValueError, match="size is 0"):
        pool.allocate(0)
    gc.collect()
    assert pool.stats().free_count == 0
