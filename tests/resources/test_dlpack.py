"""Buffers exported to other libraries by DLPack."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from vramkit.driver import ClosedError, Device, Driver
from vramkit.resources import Pool, Resource

from .capsules import CUDA, UNSIGNED, Consumer
from .makers import MIB, check_accounts


def test_what_a_consumer_finds(resource: Resource, device: Device) -> None:
    with resource.allocate(5000) as buffer:
        assert buffer.__dlpack_device__() == (CUDA, device.ordinal)
        old = Consumer(buffer.__dlpack__())
        new = Consumer(buffer.__dlpack__(max_version=(1, 0)))
        later = Consumer(buffer.__dlpack__(max_version=(9, 3), dl_device=(CUDA, 0), copy=False))
        assert (old.name, new.name, later.name) == (
            b"dltensor",
            b"dltensor_versioned",
            b"dltensor_versioned",
        )
        for consumer in (old, new, later):
            tensor = consumer.tensor
            assert (tensor.data, tensor.byte_offset) == (buffer.address, 0)
            assert (tensor.device_type, tensor.device_id) == (CUDA, device.ordinal)
            assert (tensor.code, tensor.bits, tensor.lanes) == (UNSIGNED, 8, 1)
            assert (tensor.ndim, tensor.shape[0], tensor.strides[0]) == (1, 5000, 1)
        for consumer in (new, later):
            managed = consumer.managed
            assert (managed.major, managed.minor, managed.flags) == (1, 0, 0)
        for consumer in (old, new, later):
            consumer.done()


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0)])
def test_the_memory_lives_until_the_consumer_is_done(resource: Resource, max_version: Any) -> None:
    consumer = Consumer(resource.allocate(4096).__dlpack__(max_version=max_version))
    gc.collect()
    check_accounts(resource, [4096])
    consumer.done()
    check_accounts(resource, [])


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_a_capsule_that_nobody_takes_ends_by_itself(resource: Resource, max_version: Any) -> None:
    buffer = resource.allocate(4096)
    capsule = buffer.__dlpack__(max_version=max_version)
    del buffer
    check_accounts(resource, [4096])
    del capsule
    check_accounts(resource, [])


def test_close_is_put_off_until_the_last_consumer_is_done(resource: Resource) -> None:
    with resource.allocate(4096) as buffer:
        first, second = Consumer(buffer.__dlpack__()), Consumer(buffer.__dlpack__())
    assert buffer.closed
    for call in (lambda: buffer.address, buffer.__dlpack__):
        with pytest.raises(ClosedError, match="this Buffer is closed"):
            call()
    buffer.close()
    first.done()
    check_accounts(resource, [4096])
    second.done()
    check_accounts(resource, [])


def test_a_put_off_close_refuses_a_bad_stream_at_once(resource: Resource, device: Device) -> None:
    gone = device.stream()
    gone.close()
    buffer = resource.allocate(4096)
    consumer = Consumer(buffer.__dlpack__())
    for stream, error in (("a stream", TypeError), (gone, ClosedError)):
        with pytest.raises(error):
            buffer.close(stream)
    assert not buffer.closed
    with device.stream() as stream:
        stream.wait(device.legacy_stream)
        buffer.close(stream)
        consumer.done()
        check_accounts(resource, [])


def test_a_consumer_may_be_done_on_a_thread_of_its_own(resource: Resource) -> None:
    consumer = Consumer(resource.allocate(4096).__dlpack__())
    thread = threading.Thread(target=consumer.done)
    thread.start()
    thread.join()
    check_accounts(resource, [])


def test_the_consumer_comes_behind_us_and_the_free_behind_the_consumer(
    resource: Resource, device: Device
) -> None:
    with device.stream() as ours, device.stream() as theirs:
        buffer = resource.allocate(MIB, stream=ours)
        device.kernels.spin(1_000_000, stream=ours)
        device.fill(buffer, 1, stream=ours)
        consumer = Consumer(buffer.__dlpack__(stream=theirs.handle))
        device.fill(buffer.address, 2, MIB, stream=theirs)
        device.kernels.spin(1_000_000, stream=theirs)
        del buffer
        consumer.done()
        again = resource.malloc(MIB, ours)
        device.fill(again, 3, MIB, stream=ours)
        resource.free(again)


@pytest.mark.parametrize("number", [None, 1, 2])
def test_default_streams_as_consumers(
    resource: Resource, device: Device, number: int | None
) -> None:
    theirs = device.per_thread_stream if number == 2 else device.legacy_stream
    with device.stream() as ours:
        buffer = resource.allocate(4096, stream=ours)
        device.fill(buffer, 1, stream=ours)
        consumer = Consumer(buffer.__dlpack__(stream=number))
        device.fill(buffer.address, 2, 4096, stream=theirs)
        del buffer
        consumer.done()
        resource.free(resource.malloc(4096, ours))


@pytest.mark.sim_only
def test_the_calls_that_order_takes(driver: Driver, device: Device) -> None:
    assert driver.sim is not None
    with Pool(device=device) as pool, device.stream() as ours, device.stream() as theirs:
        buffer = pool.allocate(4096, stream=ours)

        def calls(stream: int | None) -> dict[str, int]:
            assert driver.sim is not None
            driver.sim.reset_call_counts()
            capsule = buffer.__dlpack__(stream=stream)
            counts = driver.sim.call_counts()
            del capsule
            found = {name: counts.get(name, 0) for name in ("cuEventRecord", "cuStreamWaitEvent")}
            return {name: count for name, count in found.items() if count}

        assert calls(theirs.handle) == {"cuEventRecord": 1, "cuStreamWaitEvent": 1}
        assert calls(ours.handle) == {}
        assert calls(-1) == {}
        buffer.close()


def test_a_consumers_stream_may_end_when_it_is_done(resource: Resource, device: Device) -> None:
    with device.stream() as ours, resource.allocate(4096, stream=ours) as buffer:
        theirs = device.stream()
        consumer = Consumer(buffer.__dlpack__(stream=theirs.handle))
        device.kernels.spin(1_000_000, stream=theirs)
        device.fill(buffer.address, 1, 4096, stream=theirs)
        consumer.done()
        theirs.close()
        device.fill(buffer, 2, stream=ours)


@pytest.mark.sim_only
def test_a_consumers_stream_that_ended_costs_a_wait(driver: Driver, device: Device) -> None:
    assert driver.sim is not None
    with Pool(device=device) as pool, device.stream() as ours:
        theirs = device.stream()
        buffer = pool.allocate(4096, stream=ours)
        consumer = Consumer(buffer.__dlpack__(stream=theirs.handle))
        device.kernels.spin(10**9, stream=theirs)
        device.fill(buffer.address, 2, 4096, stream=theirs)
        theirs.close()
        del buffer
        before = driver.sim.now()
        consumer.done()
        assert driver.sim.now() - before > 0.9
        again = pool.malloc(4096, ours)
        device.fill(again, 3, 4096, stream=ours)
        pool.free(again)


def test_our_stream_that_ended_costs_a_wait(resource: Resource, device: Device) -> None:
    ours = device.stream()
    buffer = resource.allocate(4096, stream=ours)
    device.kernels.spin(1_000_000, stream=ours)
    device.fill(buffer, 1, stream=ours)
    ours.close()
    with device.stream() as theirs:
        consumer = Consumer(buffer.__dlpack__(stream=theirs.handle))
        device.fill(buffer.address, 2, 4096, stream=theirs)
        del buffer
        consumer.done()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"stream": 0}, ValueError, "stream is 0"),
        ({"stream": -2}, ValueError, "stream is -2"),
        ({"stream": "1"}, TypeError, "it may be None or an integer: -1"),
        ({"max_version": 1}, TypeError, "it may be a tuple"),
        ({"dl_device": (1, 0)}, BufferError, r"dl_device is \(1, 0\); .* \(2, 0\)"),
        ({"copy": True}, BufferError, "copy is True"),
    ],
)
def test_what_an_export_refuses(
    resource: Resource, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with resource.allocate(4096) as buffer, pytest.raises(error, match=words):
        buffer.__dlpack__(**arguments)
    check_accounts(resource, [])
