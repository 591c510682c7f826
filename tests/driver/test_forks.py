"""A forked child of a process that opened a driver is told so, and makes no driver call."""

from __future__ import annotations

import subprocess
import sys

import pytest

# No pool is made here: resources and the driver's own objects notice the fork by themselves.
PROGRAM = """
import gc, os, sys, warnings, vramkit
from vramkit.resources import AsyncResource, DirectResource, Limit
driver = vramkit.driver.open(sys.argv[1])
device = driver.device()
stream, event = device.stream(), device.event()
memory, pinned = device.alloc(4096), device.alloc_pinned(4096)
registered = device.register(bytearray(1 << 16))
addresses, physical = device.reserve(device.granularity), device.create(device.granularity)
addresses.map(physical)
direct, asynchronous = DirectResource(device=device), AsyncResource(device=device)
limit = Limit(direct, 1 << 20)
buffer = limit.allocate(64, stream=stream)
timeline = device.timeline()
device.kernels.spin(1, stream=stream)

calls = {
    "Driver": [driver.device, driver.device_count, lambda: driver.version, vramkit.driver.open],
    "Device": [
        device.synchronize, device.memory_info, device.stream, device.event, lambda: device.name,
        lambda: device.alloc(16), lambda: device.alloc_pinned(16), lambda: device.granularity,
        lambda: device.copy(4096, 8192, 16), lambda: device.fill(4096, 0, 16),
        lambda: device.attribute(10), lambda: device.total_memory, lambda: device.legacy_stream,
        lambda: device.per_thread_stream.synchronize(), lambda: device.register(bytearray(9999)),
        lambda: device.kernels.spin(1, stream=stream), timeline.__enter__,
    ],
    "Stream": [
        stream.synchronize, stream.query, stream.record, lambda: stream.handle, lambda: stream.id,
        lambda: stream.wait(event), lambda: stream.host_function(print),
        lambda: device.fill(4096, 0, 16, stream=stream),
    ],
    "Event": [event.synchronize, event.query, lambda: event.record(stream), lambda: event.handle],
    "DeviceMemory": [lambda: memory.address, lambda: device.fill(memory, 0)],
    "PinnedMemory": [pinned.read, lambda: pinned.write(b"x"), pinned.view],
    "RegisteredMemory": [registered.read],
    "AddressRange": [addresses.set_access, addresses.unmap],
    "PhysicalMemory": [lambda: physical.handle],
    "DirectResource": [lambda: direct.malloc(16), lambda: limit.malloc(16)],
    "AsyncResource": [lambda: asynchronous.malloc(16), asynchronous.trim],
    "new resource": [lambda: DirectResource(device=device), AsyncResource],
}
if driver.sim is not None:
    calls["Simulator"] = [driver.sim.reset, driver.sim.now, driver.sim.settings, driver.sim.reports]

child = os.fork()
if child == 0:
    for name, each in calls.items():
        for number, call in enumerate(each):
            try:
                call()
            except vramkit.driver.ClosedError as error:
                whose = " belongs to the parent process: a forked child cannot use it"
                assert whose in str(error), (name, number, str(error))
            else:
                print(name, number, "was not refused")
    things = [stream, event, memory, pinned, registered, addresses, physical, direct, buffer]
    for thing in things[:-1]:
        assert thing.closed and repr(thing), thing
    print(repr(driver), repr(device))
    for thing in (stream, event, memory, pinned, buffer):
        thing.close()
    del thing, things, calls, each, call, limit, direct, asynchronous, buffer
    del stream, event, memory, pinned, registered, addresses, physical
    gc.collect()
    sys.stdout.flush()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
stream.synchronize()
buffer.close()
for thing in (stream, event, memory, pinned, registered, addresses, physical, direct, asynchronous):
    thing.close()
print("the parent went on")
"""


def test_a_forked_child_is_refused_and_the_parent_goes_on(request: pytest.FixtureRequest) -> None:
    spec = request.config.getoption("driver")
    command = [sys.executable, "-W", "error", "-c", PROGRAM, spec]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = ["<Driver of the parent process> <Device 0 of the parent process>", "the parent went on"]
    assert (done.stderr, done.stdout.splitlines()) == ("", said)
