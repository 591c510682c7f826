"""What users of cuda.core do; nothing here knows of a simulated GPU."""

import gc
import weakref
from typing import Any

import numpy as np
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    Buffer,
    Device,
    EventOptions,
    LegacyPinnedMemoryResource,
    StreamOptions,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)
from cuda.core.graph import GraphBuilder

PAGE = 2 << 20


def _use_device(ordinal: int = 0) -> Device:
    device = Device(ordinal)
    device.set_current()
    return device


def _on_host(nbytes: int) -> tuple[Buffer, Any]:
    """Pinned memory, as a buffer and as an array."""
    buffer = LegacyPinnedMemoryResource().allocate(nbytes)
    return buffer, np.from_dlpack(buffer).view(np.uint8)


def device_describes_itself() -> None:
    device = _use_device()
    assert device.name.startswith("NVIDIA H200")
    assert device.device_id == 0
    assert tuple(device.compute_capability) == (9, 0)
    assert device.arch == "90"
    assert len(device.uuid) == 36
    assert device.properties.multiprocessor_count == 132
    assert device.properties.virtual_memory_management_supported
    assert len(Device.get_all_devices()) == 2
    assert Device(1).uuid != device.uuid


def streams_have_their_options() -> None:
    device = _use_device()
    plain = device.create_stream()
    urgent = device.create_stream(options=StreamOptions(nonblocking=True, priority=-1))
    blocking = device.create_stream(options=StreamOptions(nonblocking=False))
    assert (urgent.priority, urgent.is_nonblocking) == (-1, True)
    assert (plain.priority, blocking.is_nonblocking) == (0, False)
    assert urgent.device.device_id == 0
    assert urgent.context.handle == plain.context.handle
    version, handle = urgent.__cuda_stream__()
    assert (version, handle) == (0, int(urgent.handle))
    for stream in (plain, urgent, blocking, device.default_stream, LEGACY_DEFAULT_STREAM):
        stream.sync()
    for stream in (plain, urgent, blocking):
        stream.close()


def events_measure_time() -> None:
    device = _use_device()
    stream = device.create_stream()
    timing = EventOptions(timing_enabled=True)
    start, end = device.create_event(options=timing), device.create_event(options=timing)
    buffer, (pinned, _) = device.allocate(PAGE, stream=stream), _on_host(PAGE)
    stream.record(start)
    buffer.copy_from(pinned, stream=stream)
    stream.record(end)
    assert not end.is_done
    end.sync()
    assert end.is_done
    # 2 MiB over a link of 55 GB/s, in milliseconds.
    assert 0.035 < end - start < 0.055
    stream.sync()


def streams_wait_for_events_and_streams() -> None:
    device = _use_device()
    first, second, third = (device.create_stream() for _ in range(3))
    buffer, (pinned, bytes_seen) = device.allocate(PAGE, stream=first), _on_host(PAGE)
    buffer.fill(1, stream=first)
    second.wait(first.record())
    buffer.fill(2, stream=second)
    third.wait(second)
    buffer.copy_to(pinned, stream=third)
    third.sync()
    assert (bytes_seen == 2).all()


def pinned_memory_is_an_array() -> None:
    device = _use_device()
    stream = device.create_stream()
    (source, sent), (target, received) = _on_host(4096), _on_host(4096)
    assert source.is_host_accessible
    assert source.is_device_accessible
    buffer = device.allocate(4096, stream=stream)
    assert buffer.is_device_accessible
    assert not buffer.is_host_accessible
    assert buffer.device_id == 0
    assert buffer.size == 4096
    sent[:] = np.arange(4096) % 251
    buffer.copy_from(source, stream=stream)
    buffer.copy_to(target, stream=stream)
    stream.sync()
    assert (received == sent).all()
    buffer.close(stream)


def fills_of_every_width() -> None:
    device = _use_device()
    stream = device.create_stream()
    buffer, (pinned, seen) = device.allocate(4096, stream=stream), _on_host(4096)
    for pattern in (b"\x05", b"\x01\x02", b"\x01\x02\x03\x04"):
        buffer.fill(pattern, stream=stream)
        buffer.copy_to(pinned, stream=stream)
        stream.sync()
        assert bytes(seen) == pattern * (4096 // len(pattern))


def virtual_memory_round_trip() -> None:
    device = _use_device()
    stream = device.create_stream()
    resource = VirtualMemoryResource(device)  # shareable handles, as its defaults ask for
    assert resource.is_device_accessible
    buffer, (pinned, seen) = resource.allocate(PAGE), _on_host(PAGE)
    assert buffer.size == PAGE
    assert int(buffer.handle) % PAGE == 0
    buffer.fill(9, stream=stream)
    copied = buffer.copy_to(stream=stream)
    copied.copy_to(pinned, stream=stream)
    stream.sync()
    assert (seen == 9).all()
    copied.close()
    buffer.close()
    # Its address range is free again.
    assert resource.allocate(PAGE).size == PAGE


def virtual_memory_grows_and_keeps_its_bytes() -> None:
    device = _use_device()
    stream = device.create_stream()
    resource = VirtualMemoryResource(device, config=VirtualMemoryResourceOptions(handle_type=None))
    buffer = resource.allocate(PAGE)
    neighbour = resource.allocate(PAGE)  # in the way of growing in place
    buffer.fill(3, stream=stream)
    stream.sync()
    grown = resource.modify_allocation(buffer, 3 * PAGE)
    assert grown.size == 3 * PAGE
    pinned, seen = _on_host(grown.size)
    grown.copy_to(pinned, stream=stream)
    stream.sync()
    assert (seen[:PAGE] == 3).all()
    grown.fill(4, stream=stream)
    stream.sync()
    resource.deallocate(int(neighbour.handle), PAGE)
    resource.deallocate(int(grown.handle), 3 * PAGE)


def devices_have_memory_of_their_own() -> None:
    second = _use_device(1)
    stream = second.create_stream()
    buffer, (pinned, seen) = second.allocate(4096, stream=stream), _on_host(4096)
    assert buffer.device_id == 1
    assert stream.device.device_id == 1
    buffer.fill(6, stream=stream)
    buffer.copy_to(pinned, stream=stream)
    stream.sync()
    assert (seen == 6).all()


def wrong_devices_are_refused() -> None:
    try:
        Device(7)
    except ValueError:
        return
    raise AssertionError("there is no device 7")


def graph_is_built_and_launched() -> None:
    device = _use_device()
    stream = device.create_stream()
    buffer, (pinned, seen) = device.allocate(4096, stream=stream), _on_host(4096)
    buffer.fill(1, stream=stream)
    stream.sync()
    builder = stream.create_graph_builder().begin_building()
    assert builder.is_building
    buffer.fill(8, stream=builder)
    buffer.copy_to(pinned, stream=builder)
    graph = builder.end_building().complete()
    builder.close()
    assert (seen == 0).all()
    graph.upload(stream)
    graph.launch(stream)
    stream.sync()
    assert (seen == 8).all()
    graph.close()


def graph_branches_split_and_join() -> None:
    device = _use_device()
    stream = device.create_stream()
    left, right = (device.allocate(4096, stream=stream) for _ in range(2))
    (pinned, seen), (other, also_seen) = _on_host(4096), _on_host(4096)
    stream.sync()
    builder = device.create_graph_builder().begin_building()
    left.fill(1, stream=builder)
    one, two = builder.split(2)
    left.fill(2, stream=one)
    right.fill(3, stream=two)
    joined = GraphBuilder.join(one, two)
    left.copy_to(pinned, stream=joined)
    right.copy_to(other, stream=joined)
    graph = joined.end_building().complete()
    graph.launch(stream)
    stream.sync()
    assert (seen == 2).all()
    assert (also_seen == 3).all()
    graph.close()


def graph_keeps_its_callback() -> None:
    device = _use_device()
    stream = device.create_stream()
    launches: list[int] = []

    class Callback:
        def __call__(self) -> None:
            launches.append(len(launches))

    callback = Callback()
    kept = weakref.ref(callback)
    builder = device.create_graph_builder().begin_building()
    builder.callback(callback)
    graph = builder.end_building().complete()
    builder.close()
    del callback, builder
    gc.collect()
    for _ in range(2):
        graph.launch(stream)
    stream.sync()
    assert launches == [0, 1]
    assert kept() is not None
    graph.close()
    del graph
    gc.collect()
    assert kept() is None


def building_can_be_given_up() -> None:
    device = _use_device()
    stream = device.create_stream()
    buffer = device.allocate(4096, stream=stream)
    stream.sync()
    builder = stream.create_graph_builder().begin_building()
    buffer.fill(1, stream=builder)
    builder.close()
    # The stream captures no more, and can be used and waited for.
    buffer.fill(2, stream=stream)
    stream.sync()
