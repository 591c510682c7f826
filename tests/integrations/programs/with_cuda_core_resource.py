"""cuda.core's buffers from a vramkit pool, on one simulated GPU; its checker watches."""

import numpy as np
from cuda.core import LEGACY_DEFAULT_STREAM, Buffer, Device, LegacyPinnedMemoryResource

import vramkit

# Opened before cuda.core looks for a driver: it then finds this one.
DRIVER = vramkit.driver.open("sim")

from vramkit.integrations import cuda_core  # noqa: E402

BYTES = 1 << 20


def _installed() -> tuple[Device, vramkit.Pool]:
    device = Device(0)
    device.set_current()
    return device, cuda_core.install(vramkit.Pool(device=DRIVER.device(0)))


def _bytes_of(buffer: Buffer, stream: object) -> np.ndarray:
    pinned = LegacyPinnedMemoryResource().allocate(buffer.size)
    buffer.copy_to(pinned, stream=stream)
    stream.sync()
    return np.array(np.from_dlpack(pinned).view(np.uint8))


def device_allocates_from_the_pool() -> None:
    device, pool = _installed()
    stream = device.create_stream()
    buffer = device.allocate(BYTES, stream=stream)
    assert isinstance(buffer.memory_resource, cuda_core.MemoryResource)
    assert buffer.memory_resource.source is pool
    assert (buffer.size, buffer.device_id) == (BYTES, 0)
    assert buffer.is_device_accessible
    assert not buffer.is_host_accessible
    assert pool.stats().current_usage == BYTES
    buffer.fill(5, stream=stream)
    copy = buffer.copy_to(stream=stream)
    assert copy.memory_resource is buffer.memory_resource
    assert (_bytes_of(copy, stream) == 5).all()
    buffer.close()
    assert pool.stats().current_usage == BYTES
    del copy
    assert pool.stats().current_usage == 0
    assert pool.check_invariants() == ""
    pool.close()


def block_goes_round_on_its_stream() -> None:
    device, pool = _installed()
    stream = device.create_stream()
    first = device.allocate(BYTES, stream=stream)
    address = int(first.handle)
    first.fill(1, stream=stream)
    first.close()
    second = device.allocate(BYTES, stream=stream)
    assert int(second.handle) == address
    second.fill(2, stream=stream)
    assert (_bytes_of(second, stream) == 2).all()
    second.close()
    pool.close()


def buffer_is_freed_where_its_last_use_was() -> None:
    device, pool = _installed()
    stream, other = device.create_stream(), device.create_stream()
    for by_close in (True, False):
        buffer = device.allocate(BYTES, stream=stream)
        buffer.fill(1, stream=stream)
        other.wait(stream)
        buffer.fill(2, stream=other)
        if by_close:
            buffer.close(other)
        else:
            buffer.set_deallocation_stream(other)
            del buffer
        # Another block for the stream, or the checker reports that the other one still writes.
        device.allocate(BYTES, stream=stream).fill(3, stream=stream)
    assert pool.stats().current_usage == 0
    stream.sync()
    other.sync()
    pool.close()


def legacy_stream_and_empty_buffers() -> None:
    device, pool = _installed()
    with device.allocate(4096, stream=LEGACY_DEFAULT_STREAM) as buffer:
        buffer.fill(1, stream=LEGACY_DEFAULT_STREAM)
        assert pool.stats().current_usage == 4096
    with device.allocate(0, stream=LEGACY_DEFAULT_STREAM) as empty:
        assert empty.size == 0
        assert pool.stats().allocation_count == 1
    pool.close()


def errors_are_the_pools_own() -> None:
    device, pool = _installed()
    stream = device.create_stream()
    try:
        device.allocate(8 << 30, stream=stream)
    except vramkit.driver.OutOfMemoryError as error:
        assert "8589934592" in str(error)
    else:
        raise AssertionError("the card has not that much")
    buffer = device.allocate(BYTES, stream=stream)
    buffer.close()
    pool.close()
    try:
        device.allocate(BYTES, stream=stream)
    except vramkit.driver.ClosedError:
        return
    raise AssertionError("the pool is closed")


def without_a_pool_it_is_the_process_wide_one() -> None:
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    resource = cuda_core.MemoryResource()
    assert resource.source is vramkit.Pool.instance()
    with resource.allocate(BYTES, stream=stream) as buffer:
        buffer.fill(1, stream=stream)
        assert vramkit.Pool.instance().stats().current_usage == BYTES
    assert cuda_core.install() is resource.source
    resource.source.close()


def each_device_has_its_own() -> None:
    device = Device(1)
    device.set_current()
    pool = cuda_core.install(vramkit.Pool(device=DRIVER.device(1)))
    stream = device.create_stream()
    with device.allocate(BYTES, stream=stream) as buffer:
        assert buffer.device_id == 1
        buffer.fill(1, stream=stream)
    assert not isinstance(Device(0).memory_resource, cuda_core.MemoryResource)
    pool.close()


class _Plain:
    """Any resource will do: this one has the driver's plain memory, and counts."""

    def __init__(self) -> None:
        self.device = DRIVER.device(0)
        self.live: dict[int, vramkit.driver.DeviceMemory] = {}

    def malloc(self, size: int, stream: object | None = None) -> int:
        memory = self.device.alloc(size)
        self.live[memory.address] = memory
        return memory.address

    def free(self, address: int, size: int | None = None, stream: object | None = None) -> None:
        assert self.live[address].nbytes == size
        self.device.synchronize()
        self.live.pop(address).close()


def any_resource_serves() -> None:
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    plain = _Plain()
    with cuda_core.MemoryResource(plain).allocate(BYTES, stream=stream) as buffer:
        buffer.fill(4, stream=stream)
        assert (_bytes_of(buffer, stream) == 4).all()
        assert int(buffer.handle) in plain.live
    assert plain.live == {}


def what_is_no_resource_is_refused() -> None:
    for given in (5, "pool", vramkit.Pool):
        for use in (cuda_core.MemoryResource, cuda_core.install):
            try:
                use(given)
            except TypeError as error:
                assert "is no resource of vramkit, such as a Pool" in str(error)
            else:
                raise AssertionError(given)
