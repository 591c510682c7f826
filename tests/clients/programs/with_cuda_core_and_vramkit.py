"""cuda.core and vramkit in one program, on one simulated GPU: streams and memory go both ways."""

import numpy as np
from cuda.core import Buffer, Device, LegacyPinnedMemoryResource
from cuda.core.utils import StridedMemoryView

import vramkit

# Opened before cuda.core looks for a driver: it then finds this one, whatever the library path.
DRIVER = vramkit.driver.open("sim")

BYTES = 1 << 20


def one_driver_serves_both() -> None:
    theirs, ours = Device(0), DRIVER.device(0)
    theirs.set_current()
    assert theirs.name == ours.name
    assert DRIVER.sim is not None
    stream = theirs.create_stream()
    assert DRIVER.sim.live_objects()["streams"] == 1
    stream.close()
    assert DRIVER.sim.live_objects()["streams"] == 0


def their_stream_carries_our_copies() -> None:
    theirs, ours = Device(0), DRIVER.device(0)
    theirs.set_current()
    stream = theirs.create_stream()
    with ours.alloc(BYTES) as memory, ours.alloc_pinned(BYTES) as pinned:
        pinned.write(b"\x07" * BYTES)
        ours.copy(memory, pinned, stream=stream)
        ours.kernels.fill(memory.at(0, 4096), 1024, 0x01010101, stream=stream)
        ours.copy(pinned, memory, stream=stream)
        stream.sync()
        assert pinned.read(0, 4096) == b"\x01" * 4096
        assert pinned.read(4096) == b"\x07" * (BYTES - 4096)


def our_stream_carries_their_copies() -> None:
    theirs, ours = Device(0), DRIVER.device(0)
    theirs.set_current()
    with ours.stream() as stream:
        wrapped = theirs.create_stream(stream)
        assert int(wrapped.handle) == stream.handle
        buffer = theirs.allocate(BYTES, stream=wrapped)
        pinned = LegacyPinnedMemoryResource().allocate(BYTES)
        buffer.fill(3, stream=wrapped)
        buffer.copy_to(pinned, stream=wrapped)
        stream.synchronize()
        assert (np.from_dlpack(pinned).view(np.uint8) == 3).all()
        buffer.close(wrapped)


def streams_of_both_wait_for_each_other() -> None:
    theirs, ours = Device(0), DRIVER.device(0)
    theirs.set_current()
    their_stream = theirs.create_stream()
    with ours.stream() as our_stream, ours.alloc(BYTES) as memory:
        ours.fill(memory, 1, stream=our_stream)
        their_stream.wait(our_stream)
        ours.fill(memory, 2, stream=their_stream)
        our_stream.wait(their_stream)
        target = bytearray(BYTES)
        ours.copy(target, memory, stream=our_stream)
        assert target == b"\x02" * BYTES


def their_buffer_over_our_memory() -> None:
    theirs, ours = Device(0), DRIVER.device(0)
    theirs.set_current()
    stream = theirs.create_stream()
    with ours.alloc(BYTES) as memory:
        buffer = Buffer.from_handle(memory.address, BYTES)
        buffer.fill(5, stream=stream)
        stream.sync()
        target = bytearray(BYTES)
        ours.copy(target, memory)
        assert target == b"\x05" * BYTES


def their_view_of_our_buffer() -> None:
    theirs, ours = Device(0), DRIVER.device(0)
    theirs.set_current()
    their_stream = theirs.create_stream()
    with vramkit.Pool(device=ours) as pool, ours.stream() as stream:
        buffer = pool.allocate(BYTES, stream=stream)
        ours.fill(buffer, 1, stream=stream)
        for view in (
            StridedMemoryView.from_dlpack(buffer, stream_ptr=int(their_stream.handle)),
            StridedMemoryView.from_cuda_array_interface(
                buffer, stream_ptr=int(their_stream.handle)
            ),
        ):
            assert (view.ptr, view.shape, view.dtype) == (buffer.address, (BYTES,), np.uint8)
            assert (view.device_id, view.is_device_accessible) == (0, True)
            ours.fill(view.ptr, 2, BYTES, stream=their_stream)
            stream.wait(their_stream)
        del view, buffer
        assert pool.stats().current_usage == 0
