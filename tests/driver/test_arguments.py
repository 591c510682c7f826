"""Every argument that does not fit is one TypeError or ValueError in words of our own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest

import vramkit
from vramkit import Pool, lab, resources
from vramkit.driver import (
    AddressRange,
    Device,
    Driver,
    Event,
    Kernels,
    PhysicalMemory,
    PinnedMemory,
    RegisteredMemory,
    Simulator,
    Span,
    Stream,
    Timeline,
)
from vramkit.resources import AsyncResource, Buffer, DirectResource, Limit, Statistics, Tracking

MIB = 1 << 20

NOT_INTEGERS: list[object] = ["x", b"x", 1.5, math.nan, [1], None]
BAD: dict[str, list[object]] = {
    "integer": [*NOT_INTEGERS, -1, 2**64, -(2**80)],
    "optional integer": [*NOT_INTEGERS[:-1], -1, 2**64],
    "any integer": ["x", 1.5, math.nan, None, 2**64, -(2**80)],
    "no integer": NOT_INTEGERS,
    "bool": ["x", 1.5, 1, None],
    "number": ["x", -1, math.nan, None, [1]],
    "text": [1, 1.5, None, b"x"],
    "stream": ["x", 1.5, -1, 2**64, math.nan, Stream, None],
    "optional stream": ["x", 1.5, -1, 2**64, math.nan, Stream],
    "event": ["x", 1.5, -1, 2**64, Event],
    "object": ["x", 1.5, -1, 2**64, None, object],
    "place": ["x", 1.5, -1, 2**64, math.nan, None, Span],
    "buffer": ["x", 1.5, math.nan, None, object],
    "function": ["x", 1.5, -1, None],
}
# What a message must not show: how the arguments are converted.
RAW = ("bad_cast", "incompatible function", "nanobind", "std::", "cannot be interpreted", "unsupp")


class Made(NamedTuple):
    """What the calls work on."""

    driver: Driver
    sim: Simulator
    device: Device
    stream: Stream
    event: Event
    memory: Any
    pinned: PinnedMemory
    addresses: AddressRange
    pool: Pool
    direct: DirectResource
    buffer: Any
    folder: Path


Call = Callable[[Made, Any], object]

# By "Class.method argument": the kind of the argument, and a call with it.
CALLS: dict[str, tuple[str, Call]] = {
    "open spec": ("text", lambda m, x: vramkit.driver.open(x if x is not None else 1)),  # type: ignore[arg-type]
    "Driver.device ordinal": ("no integer", lambda m, x: m.driver.device(x)),
    "Device.attribute which": ("any integer", lambda m, x: m.device.attribute(x)),
    "Device.stream priority": ("any integer", lambda m, x: m.device.stream(priority=x)),
    "Device.stream blocking": ("bool", lambda m, x: m.device.stream(blocking=x)),
    "Device.event timing": ("bool", lambda m, x: m.device.event(timing=x)),
    "Device.alloc nbytes": ("integer", lambda m, x: m.device.alloc(x)),
    "Device.alloc_pinned nbytes": ("integer", lambda m, x: m.device.alloc_pinned(x)),
    "Device.register buffer": ("buffer", lambda m, x: m.device.register(x)),
    "Device.register address": ("any integer", lambda m, x: m.device.register(x, nbytes=-1)),
    "Device.register nbytes": ("integer", lambda m, x: m.device.register(4096, nbytes=x)),
    "Device.reserve nbytes": ("integer", lambda m, x: m.device.reserve(x)),
    "Device.create nbytes": ("integer", lambda m, x: m.device.create(x)),
    "Device.copy dst": ("place", lambda m, x: m.device.copy(x, m.memory)),
    "Device.copy src": ("place", lambda m, x: m.device.copy(m.memory, x)),
    "Device.copy nbytes": ("optional integer", lambda m, x: m.device.copy(m.memory, m.pinned, x)),
    "Device.copy stream": (
        "optional stream",
        lambda m, x: m.device.copy(m.memory, m.pinned, stream=x),
    ),
    "Device.fill dst": ("place", lambda m, x: m.device.fill(x, 0, 4)),
    "Device.fill value": ("integer", lambda m, x: m.device.fill(m.memory, x)),
    "Device.fill nbytes": ("optional integer", lambda m, x: m.device.fill(m.memory, 0, x)),
    "Device.fill width": ("integer", lambda m, x: m.device.fill(m.memory, 0, width=x)),
    "Device.fill stream": ("optional stream", lambda m, x: m.device.fill(m.memory, 0, stream=x)),
    "Device.timeline limit": ("integer", lambda m, x: m.device.timeline(limit=x)),
    "Kernels.spin nanoseconds": (
        "integer",
        lambda m, x: m.device.kernels.spin(x, stream=m.stream),
    ),
    "Kernels.spin stream": ("stream", lambda m, x: m.device.kernels.spin(1, stream=x)),
    "Kernels.spin blocks": (
        "optional integer",
        lambda m, x: m.device.kernels.spin(1, stream=m.stream, blocks=x),
    ),
    "Kernels.spin threads": (
        "integer",
        lambda m, x: m.device.kernels.spin(1, stream=m.stream, threads=x),
    ),
    "Kernels.fill dst": ("place", lambda m, x: m.device.kernels.fill(x, 4, 0, stream=m.stream)),
    "Kernels.fill count": (
        "integer",
        lambda m, x: m.device.kernels.fill(m.memory, x, 0, stream=m.stream),
    ),
    "Kernels.fill value": (
        "integer",
        lambda m, x: m.device.kernels.fill(m.memory, 4, x, stream=m.stream),
    ),
    "Kernels.add a": (
        "place",
        lambda m, x: m.device.kernels.add(m.memory, x, m.memory, 4, stream=m.stream),
    ),
    "Kernels.add count": (
        "integer",
        lambda m, x: m.device.kernels.add(m.memory, m.memory, m.memory, x, stream=m.stream),
    ),
    "Kernels.sweep rounds": (
        "integer",
        lambda m, x: m.device.kernels.sweep(m.memory, 4, x, stream=m.stream),
    ),
    "Kernels.checksum out": (
        "place",
        lambda m, x: m.device.kernels.checksum(m.memory, 4, x, stream=m.stream),
    ),
    "Kernels.unpack_bf16 packed": (
        "place",
        lambda m, x: m.device.kernels.unpack_bf16(m.memory, x, 8, 0, stream=m.stream),
    ),
    "Kernels.unpack_bf16 exceptions": (
        "integer",
        lambda m, x: m.device.kernels.unpack_bf16(m.memory, m.memory, 8, x, stream=m.stream),
    ),
    "Stream.from_handle device": ("object", lambda m, x: Stream.from_handle(x, 1)),
    "Stream.from_handle handle": ("integer", lambda m, x: Stream.from_handle(m.device, x)),
    "Stream.record event": ("event", lambda m, x: m.stream.record(x)),
    "Stream.wait other": ("stream", lambda m, x: m.stream.wait(x)),
    "Stream.host_function function": ("function", lambda m, x: m.stream.host_function(x)),
    "Stream.write_value address": ("place", lambda m, x: m.stream.write_value(x, 1)),
    "Stream.write_value value": ("integer", lambda m, x: m.stream.write_value(m.memory, x)),
    "Stream.write_value width": (
        "integer",
        lambda m, x: m.stream.write_value(m.memory, 1, width=x),
    ),
    "Stream.wait_value address": ("place", lambda m, x: m.stream.wait_value(x, 0)),
    "Stream.wait_value value": ("integer", lambda m, x: m.stream.wait_value(m.memory, x)),
    "Stream.wait_value width": ("integer", lambda m, x: m.stream.wait_value(m.memory, 0, width=x)),
    "Stream.wait_value condition": (
        "text",
        lambda m, x: m.stream.wait_value(m.memory, 0, condition=x),
    ),
    "Event.record stream": ("stream", lambda m, x: m.event.record(x)),
    "Event.elapsed_since earlier": ("object", lambda m, x: m.event.elapsed_since(x)),
    "PinnedMemory.at offset": ("integer", lambda m, x: m.pinned.at(x)),
    "PinnedMemory.at nbytes": ("optional integer", lambda m, x: m.pinned.at(0, x)),
    "PinnedMemory.read offset": ("integer", lambda m, x: m.pinned.read(x)),
    "PinnedMemory.read nbytes": ("optional integer", lambda m, x: m.pinned.read(0, x)),
    "PinnedMemory.write data": ("buffer", lambda m, x: m.pinned.write(x)),
    "PinnedMemory.write offset": ("integer", lambda m, x: m.pinned.write(b"x", x)),
    "PinnedMemory.view offset": ("integer", lambda m, x: m.pinned.view(x)),
    "PinnedMemory.view readonly": ("bool", lambda m, x: m.pinned.view(readonly=x)),
    "AddressRange.map physical": ("object", lambda m, x: m.addresses.map(x)),
    "AddressRange.set_access offset": ("integer", lambda m, x: m.addresses.set_access(x)),
    "AddressRange.unmap offset": ("integer", lambda m, x: m.addresses.unmap(x)),
    "Simulator.reset checker": ("bool", lambda m, x: m.sim.reset(checker=x)),
    "Simulator.reset devices": ("integer", lambda m, x: m.sim.reset(devices=x)),
    "Simulator.reset profile": ("text", lambda m, x: m.sim.reset(x)),
    "Simulator.reset clock": ("text", lambda m, x: m.sim.reset(clock=x)),
    "Simulator.advance seconds": ("number", lambda m, x: m.sim.advance(x)),
    "Simulator.start_timeline limit": ("integer", lambda m, x: m.sim.start_timeline(x)),
    "Simulator.host_access address": ("integer", lambda m, x: m.sim.host_access(x, 1, False)),
    "Simulator.host_access nbytes": ("integer", lambda m, x: m.sim.host_access(0, x, False)),
    "Simulator.host_access write": ("bool", lambda m, x: m.sim.host_access(0, 1, x)),
    "Simulator.block_alloc address": ("integer", lambda m, x: m.sim.block_alloc(x, 1, m.stream)),
    "Simulator.block_free stream": ("stream", lambda m, x: m.sim.block_free(0, 1, x)),
    "Simulator.block_hold stream": ("stream", lambda m, x: m.sim.block_hold(0, 1, x)),
    "Simulator.block_region address": ("integer", lambda m, x: m.sim.block_region(x, 1)),
    "Simulator.host_alias address": ("integer", lambda m, x: m.sim.host_alias(x)),
    "Simulator.inject call_glob": ("text", lambda m, x: m.sim.inject(x, code=1)),
    "Simulator.inject nth": ("integer", lambda m, x: m.sim.inject("x", nth=x, code=1)),
    "Simulator.inject times": ("optional integer", lambda m, x: m.sim.inject("x", times=x, code=1)),
    "Simulator.inject code": ("integer", lambda m, x: m.sim.inject("x", code=x)),
    "Simulator.inject delay_us": ("number", lambda m, x: m.sim.inject("x", delay_us=x)),
    "Simulator.lose_device ordinal": ("integer", lambda m, x: m.sim.lose_device(x)),
    "Simulator.lose_device code": ("integer", lambda m, x: m.sim.lose_device(code=x)),
    "Span.at offset": ("integer", lambda m, x: Span(4096, 16).at(x)),
    "Pool.instance device": ("object", lambda m, x: Pool.instance([x])),  # type: ignore[arg-type]
    "Pool.malloc size": ("integer", lambda m, x: m.pool.malloc(x)),
    "Pool.malloc stream": ("optional stream", lambda m, x: m.pool.malloc(16, x)),
    "Pool.try_malloc size": ("integer", lambda m, x: m.pool.try_malloc(x)),
    "Pool.free address": ("integer", lambda m, x: m.pool.free(x)),
    "Pool.free size": ("optional integer", lambda m, x: m.pool.free(m.buffer.address, x)),
    "Pool.free stream": (
        "optional stream",
        lambda m, x: m.pool.free(m.buffer.address, stream=x),
    ),
    "Pool.allocate size": ("integer", lambda m, x: m.pool.allocate(x)),
    "Pool.allocate stream": ("optional stream", lambda m, x: m.pool.allocate(16, stream=x)),
    "Pool.deallocate address": ("integer", lambda m, x: m.pool.deallocate(x, 16)),
    "Pool.deallocate size": ("integer", lambda m, x: m.pool.deallocate(m.buffer.address, x)),
    "Pool.on_shortage callback": ("function", lambda m, x: m.pool.on_shortage(x)),
    "Pool.preallocate size": ("integer", lambda m, x: m.pool.preallocate(x, 1)),
    "Pool.preallocate count": ("integer", lambda m, x: m.pool.preallocate(16, x)),
    "Pool.also_used_on address": ("integer", lambda m, x: m.pool.also_used_on(x, m.stream)),
    "Pool.also_used_on stream": (
        "optional stream",
        lambda m, x: m.pool.also_used_on(m.buffer.address, x),
    ),
    "Pool.configure alignment": ("integer", lambda m, x: m.pool.configure(alignment=x)),
    "Pool.configure limit": ("optional integer", lambda m, x: m.pool.configure(limit=x)),
    "Pool.configure decay_ms": ("optional integer", lambda m, x: m.pool.configure(decay_ms=x)),
    "Pool.configure defrag_threshold": (
        "number",
        lambda m, x: m.pool.configure(defrag_threshold=x),
    ),
    "Pool.configure enable_stats": ("bool", lambda m, x: m.pool.configure(enable_stats=x)),
    "Pool.configure large": ("text", lambda m, x: m.pool.configure(large=x)),
    "Pool.snapshot stacks": ("object", lambda m, x: m.pool.snapshot(x or "x")),  # type: ignore[arg-type]
    "DirectResource.malloc size": ("integer", lambda m, x: m.direct.malloc(x)),
    "DirectResource.free address": ("integer", lambda m, x: m.direct.free(x)),
    "DirectResource.allocate size": ("integer", lambda m, x: m.direct.allocate(x)),
    "DirectResource.deallocate size": ("integer", lambda m, x: m.direct.deallocate(4096, x)),
    "AsyncResource() release_threshold": (
        "optional integer",
        lambda m, x: AsyncResource(device=m.device, release_threshold=x),
    ),
    "AsyncResource() shared": ("bool", lambda m, x: AsyncResource(device=m.device, shared=x)),
    "FixedPool() size": ("integer", lambda m, x: lab.baselines.FixedPool(x, device=m.device)),
    "Arena() size": ("integer", lambda m, x: lab.baselines.Arena(x, device=m.device)),
    "Buffer() resource": ("object", lambda m, x: Buffer(x, 16)),
    "Buffer() size": ("integer", lambda m, x: Buffer(Statistics(m.direct), x)),
    "Buffer.at offset": ("integer", lambda m, x: m.buffer.at(x)),
    "Buffer.at nbytes": ("optional integer", lambda m, x: m.buffer.at(0, x)),
    "Buffer.close stream": ("optional stream", lambda m, x: m.buffer.close(x)),
    "Buffer.__dlpack__ stream": (
        "optional integer",
        lambda m, x: m.buffer.__dlpack__(stream=x if x != -1 else -2),
    ),
    "Buffer.__dlpack__ max_version": (
        "object",
        lambda m, x: m.buffer.__dlpack__(max_version=(x, 0) if x is None else x),
    ),
    "Buffer.__dlpack__ copy": ("bool", lambda m, x: m.buffer.__dlpack__(copy=x or 1)),
    "Limit() upstream": ("object", lambda m, x: Limit(x, 1)),
    "Limit() limit": ("integer", lambda m, x: Limit(m.direct, x)),
    "Limit.malloc size": ("integer", lambda m, x: Limit(m.direct, MIB).malloc(x)),
    "Limit.free address": ("integer", lambda m, x: Limit(m.direct, MIB).free(x)),
    "Limit.allocate size": ("integer", lambda m, x: Limit(m.direct, MIB).allocate(x)),
    "Limit.deallocate address": ("integer", lambda m, x: Limit(m.direct, MIB).deallocate(x, 1)),
    "Tracking() depth": ("integer", lambda m, x: Tracking(m.direct, depth=x)),
    "FailureCallback() function": (
        "function",
        lambda m, x: resources.FailureCallback(m.direct, x),
    ),
}


@pytest.fixture
def made(driver: Driver, tmp_path: Path) -> Iterator[Made]:
    assert driver.sim is not None
    device = driver.device()
    with ExitStack() as ends:
        pool = ends.enter_context(Pool(device=device, background=False))
        yield Made(
            driver,
            driver.sim,
            device,
            ends.enter_context(device.stream()),
            ends.enter_context(device.event()),
            ends.enter_context(device.alloc(64)),
            ends.enter_context(device.alloc_pinned(64)),
            ends.enter_context(device.reserve(device.granularity)),
            pool,
            ends.enter_context(DirectResource(device=device)),
            ends.enter_context(pool.allocate(64)),
            tmp_path,
        )


def live_objects(sim: Simulator) -> dict[str, int]:
    """The device keeps its kernels."""
    return sim.live_objects() | {"modules": 0}


@pytest.mark.sim_only
@pytest.mark.parametrize("name", CALLS)
def test_a_bad_argument_is_one_clear_exception(made: Made, name: str) -> None:
    kind, call = CALLS[name]
    for value in BAD[kind]:
        before = live_objects(made.sim)
        with pytest.raises((TypeError, ValueError)) as caught:
            call(made, value)
        text = str(caught.value)
        assert not any(word in text for word in RAW), f"{value!r}: {text}"
        assert live_objects(made.sim) == before, value
        del caught


# Methods without arguments that can be wrong, or whose arguments are the same as of those above.
LEFT_OUT = {
    "Device.recorded": "is for the timeline",
    "Kernels.function": "is for the engine that streams weights",
    "Simulator.apply": "takes what reset() takes",
    "RegisteredMemory.at": "as PinnedMemory",
    "RegisteredMemory.read": "as PinnedMemory",
    "RegisteredMemory.write": "as PinnedMemory",
    "RegisteredMemory.view": "as PinnedMemory",
    "AddressRange.at": "as PinnedMemory",
    "Timeline.save": "takes a path, as open() does",
    "Driver.begin_timeline": "is for the timeline",
    "Driver.end_timeline": "is for the timeline",
    "AsyncResource": "as DirectResource",
    "Limit.take": "is for adaptors of one's own",
    "Limit.put_back": "is for adaptors of one's own",
    "Limit.allocated": "is for adaptors of one's own",
    "Limit.freed": "is for adaptors of one's own",
}
CLASSES = [
    *(Driver, Device, Stream, Event, Kernels, PinnedMemory, RegisteredMemory, AddressRange),
    *(PhysicalMemory, Timeline, Simulator, Pool, DirectResource, AsyncResource, Limit),
]


def takes_arguments(method: Any) -> bool:
    if hasattr(method, "__nb_signature__"):
        signature = method.__nb_signature__[0][0]
        return "(self)" not in signature and "()" not in signature
    parameters = list(inspect.signature(method).parameters)
    return bool([name for name in parameters if name != "self"])


def test_all_public_methods_are_in_the_table() -> None:
    known = {name.split()[0] for name in CALLS}
    missing = []
    for each in CLASSES:
        for name in dir(each):
            method = getattr(each, name)
            full = f"{each.__name__}.{name}"
            if name.startswith("_") or not callable(method) or not takes_arguments(method):
                continue
            if full not in known and full not in LEFT_OUT and each.__name__ not in LEFT_OUT:
                missing.append(full)
    assert missing == []


@pytest.mark.parametrize("kind", [numpy.int64, numpy.uint32, numpy.int16])
def test_integers_of_numpy_are_integers(driver: Driver, kind: Callable[[int], Any]) -> None:
    device = driver.device()
    with (
        device.stream(priority=kind(0)) as stream,
        device.alloc(kind(64)) as memory,
        device.alloc_pinned(kind(64)) as pinned,
        Pool(
            device=device, background=False, limit=numpy.int64(4 * MIB), cache_bytes=kind(0)
        ) as pool,
        pool.allocate(kind(64), stream=stream) as buffer,
    ):
        assert (pool.config.limit, type(pool.config.limit)) == (4 * MIB, int)
        pool.configure(alignment=kind(512), decay_ms=kind(100), cache_bytes=kind(0))
        assert pool.config.alignment == 512
        pinned.write(b"1234", kind(4))
        device.copy(numpy.uint64(memory.address), numpy.uint64(pinned.address), kind(64))
        device.fill(numpy.uint64(memory.address), kind(7), kind(4), width=kind(1))
        device.copy(pinned, memory)
        device.synchronize()
        assert pinned.read(kind(0), kind(8)) == b"\7\7\7\7" + b"1234"
        device.kernels.fill(buffer.at(kind(16), kind(16)), kind(4), kind(1), stream=stream)
        stream.write_value(numpy.uint64(memory.address), kind(9), width=kind(4))
        Stream.from_handle(device, kind(1)).synchronize()
        stream.synchronize()
        pool.free(numpy.uint64(pool.malloc(kind(100), stream)), kind(100))
        assert driver.device(kind(0)) is device
