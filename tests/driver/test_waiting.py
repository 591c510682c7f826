"""Calls that wait let other Python threads run meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vramkit.driver import Device, Driver, Stream

SPIN_NS = 200_000_000

# Each waits for the spinning kernel; it gets the device, the busy stream and memory to use.
WAITS: dict[str, Callable[[Device, Stream, dict[str, Any]], object]] = {
    "Stream.synchronize": lambda device, stream, made: stream.synchronize(),
    "Device.synchronize": lambda device, stream, made: device.synchronize(),
    "Event.synchronize": lambda device, stream, made: stream.record().synchronize(),
    "synchronous copy": lambda device, stream, made: device.copy(made["out"], made["memory"]),
    "DeviceMemory.close": lambda device, stream, made: made["memory"].close(),
    "PinnedMemory.close": lambda device, stream, made: made["pinned"].close(),
    "RegisteredMemory.close": lambda device, stream, made: made["registered"].close(),
}


@pytest.fixture
def no_forced_switches() -> Iterator[None]:
    """A thread loses the interpreter only when it lets go of it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


@pytest.mark.sim(clock="wall")
@pytest.mark.parametrize("wait", WAITS)
def test_another_thread_runs_while_one_waits(
    driver: Driver, wait: str, no_forced_switches: None
) -> None:
    device = driver.device()
    go = threading.Event()
    busy_when_seen: list[bool] = []

    with (
        device.stream(blocking=True) as stream,
        device.alloc(16) as memory,
        device.alloc_pinned(16) as pinned,
        device.register(bytearray(1 << 16)) as registered,
    ):
        made = {"memory": memory, "pinned": pinned, "registered": registered, "out": bytearray(16)}

        def look() -> None:
            go.wait()
            busy_when_seen.append(not stream.query())

        thread = threading.Thread(target=look)
        thread.start()
        device.kernels.spin(1, stream=stream)
        stream.synchronize()
        device.kernels.spin(SPIN_NS, stream=stream)
        go.set()
        WAITS[wait](device, stream, made)
        assert stream.query(), "the call did not wait, so it shows nothing"
        thread.join()
    assert busy_when_seen == [True]
