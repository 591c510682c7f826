"""What every resource does, on any driver."""

from __future__ import annotations

import gc
import threading
import weakref
from random import Random

import pytest

from vramkit.driver import Device, Driver, OutOfMemoryError, Stream
from vramkit.resources import Buffer, Resource

from .makers import HUGE, MIB, check_accounts

SIZES = [1, 255, 256, 257, 4096, 100_000, MIB, 2 * MIB + 1, 5 * MIB]


class Foreign:
    """A stream as another library would give it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return self.stream.__cuda_stream__()


def content(device: Device, address: int, nbytes: int, stream: Stream) -> bytes:
    target = bytearray(nbytes)
    device.copy(target, address, nbytes, stream=stream)
    stream.synchronize()
    return bytes(target)


def test_it_is_a_resource(resource: Resource, device: Device) -> None:
    assert isinstance(resource, Resource)
    assert resource.device is device
    assert not resource.closed
    assert type(resource).__name__ in repr(resource)


def test_blocks_are_aligned_and_do_not_overlap(resource: Resource, device: Device) -> None:
    with device.stream() as stream:
        blocks = [(resource.malloc(size, stream), size) for size in SIZES]
        for value, (address, size) in enumerate(blocks):
            assert address % 256 == 0
            device.fill(address, value, size, stream=stream)
        check_accounts(resource, SIZES)
        for value, (address, size) in enumerate(blocks):
            assert content(device, address, size, stream) == bytes([value]) * size
        for address, size in blocks[::2]:
            resource.free(address, size)
        for address, _ in blocks[1::2]:
            resource.free(address)


def test_without_a_stream_it_is_the_legacy_one(resource: Resource, device: Device) -> None:
    address = resource.malloc(4096)
    device.fill(address, 7, 4096, stream=device.legacy_stream)
    assert content(device, address, 4096, device.legacy_stream) == b"\7" * 4096
    resource.free(address)


@pytest.mark.sim_only
def test_nobody_asks_for_the_id_of_the_legacy_stream(resource: Resource, driver: Driver) -> None:
    """The driver refuses it beside captures on blocking streams."""
    resource.free(resource.malloc(4096))
    assert driver.sim is not None
    assert "cuStreamGetId" not in driver.sim.call_counts()


def test_the_same_stream_may_use_a_block_again_at_once(resource: Resource, device: Device) -> None:
    with device.stream() as stream:
        for value in range(4):
            address = resource.malloc(MIB, stream)
            device.kernels.spin(1_000_000, stream=stream)
            device.fill(address, value, MIB, stream=stream)
            resource.free(address)


def test_another_stream_comes_behind_the_last_use(resource: Resource, device: Device) -> None:
    with device.stream() as first, device.stream() as second:
        for size in (4096, 9 * MIB):
            address = resource.malloc(size, first)
            device.kernels.spin(1_000_000, stream=first)
            device.fill(address, 1, size, stream=first)
            resource.free(address)
            again = resource.malloc(size, second)
            device.fill(again, 2, size, stream=second)
            first.synchronize()
            assert content(device, again, 4096, second) == b"\2" * 4096
            resource.free(again)


def test_a_block_may_be_freed_on_another_stream(resource: Resource, device: Device) -> None:
    with device.stream() as first, device.stream() as second:
        address = resource.malloc(MIB, first)
        device.fill(address, 1, MIB, stream=first)
        second.wait(first)
        device.kernels.spin(1_000_000, stream=second)
        device.fill(address, 2, MIB, stream=second)
        resource.free(address, stream=second)
        for stream in (first, second):
            again = resource.malloc(MIB, stream)
            device.fill(again, 3, MIB, stream=stream)
            resource.free(again)


def test_streams_of_other_libraries(resource: Resource, device: Device) -> None:
    with device.stream() as stream:
        foreign = Foreign(stream)
        address = resource.malloc(4096, foreign)
        device.fill(address, 1, 4096, stream=stream)
        resource.free(address, 4096, foreign)
        with resource.allocate(4096, stream=foreign) as buffer:
            assert buffer.stream is foreign
        if hasattr(resource, "release_all"):
            resource.release_all()


def test_a_block_outlives_its_stream(resource: Resource, device: Device) -> None:
    stream = device.stream()
    address, kept = resource.malloc(MIB, stream), resource.malloc(MIB, stream)
    device.kernels.spin(1_000_000, stream=stream)
    device.fill(address, 1, MIB, stream=stream)
    end = stream.record()
    stream.close()
    resource.free(address)
    with device.stream() as other:
        for _ in range(3):
            again = resource.malloc(MIB, other)
            device.fill(again, 2, MIB, stream=other)
            resource.free(again)
        other.wait(end)
        resource.free(kept, stream=other)


def test_per_thread_streams_and_frees_on_other_threads(resource: Resource, device: Device) -> None:
    addresses: list[int] = []

    def work() -> None:
        address = resource.malloc(4096, device.per_thread_stream)
        device.fill(address, 1, 4096, stream=device.per_thread_stream)
        addresses.append(address)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    resource.free(addresses[0], 4096)
    work()
    resource.free(addresses[1], 4096)


def test_threads(resource: Resource, device: Device) -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        random = Random(seed)
        try:
            with device.stream() as stream:
                live: list[int] = []
                for _ in range(60):
                    size = random.choice([100, 5000, 70_000, MIB])
                    address = resource.malloc(size, stream)
                    device.fill(address, seed, size, stream=stream)
                    live.append(address)
                    if len(live) > 4:
                        resource.free(live.pop(random.randrange(len(live))))
                for address in live:
                    resource.free(address)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_out_of_memory_is_one_clear_error(resource: Resource, device: Device) -> None:
    address = resource.malloc(4096)
    for call in (resource.malloc, resource.allocate):
        with pytest.raises(
            OutOfMemoryError, match=rf"^\w+\.malloc failed: .*asked for {HUGE} bytes"
        ):
            call(HUGE)
    check_accounts(resource, [4096])
    resource.free(address)
    resource.free(resource.malloc(MIB))


def test_a_buffer_gives_itself_back(resource: Resource, device: Device) -> None:
    with device.stream() as stream, device.stream() as other:
        with resource.allocate(5000, stream=stream) as buffer:
            assert isinstance(buffer, Buffer)
            assert (buffer.nbytes, buffer.size, len(buffer)) == (5000, 5000, 5000)
            assert (buffer.resource, buffer.stream) == (resource, stream)
            assert buffer.handle == buffer.address
            assert buffer.device_id == device.ordinal
            assert (buffer.is_device_accessible, buffer.is_host_accessible) == (True, False)
            device.fill(buffer, 1, stream=stream)
            check_accounts(resource, [5000])
        assert buffer.closed
        check_accounts(resource, [])
        dropped = resource.allocate(MIB, stream=stream)
        dropped = resource.allocate(4096, stream=stream)
        check_accounts(resource, [4096])
        other.wait(stream)
        dropped.close(other)
        check_accounts(resource, [])


def test_a_buffer_keeps_its_stream_alive(resource: Resource, device: Device) -> None:
    stream = device.stream()
    alive = weakref.ref(stream)
    buffer = resource.allocate(4096, stream=stream)
    noted = weakref.ref(buffer)
    del stream
    gc.collect()
    assert alive() is not None
    del buffer
    assert noted() is None
    gc.collect()
    assert alive() is None


def test_a_buffer_in_a_cycle_through_itself_is_collected(resource: Resource) -> None:
    class Holder(Foreign):
        buffer: Buffer

    with resource.device.stream() as stream:
        holder = Holder(stream)
        holder.buffer = resource.allocate(4096, stream=holder)
        check_accounts(resource, [4096])
        del holder
        gc.collect()
        check_accounts(resource, [])
        if hasattr(resource, "release_all"):
            resource.release_all()


def test_deallocate_goes_with_allocate(resource: Resource) -> None:
    address = resource.malloc(4096)
    resource.deallocate(address, 4096, stream=None)
    check_accounts(resource, [])
