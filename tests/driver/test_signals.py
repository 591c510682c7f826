"""A signal, such as that of Ctrl-C, is handled while the main thread waits for the card."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from pool.graphs import INVALIDATED, MODES, Graph, Graphs
from sim.raw_calls import RawCalls

from vramkit.driver import Device, Driver, DriverError, Stream

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(clock="wall")]

SPIN_NS = 10_000_000_000  # without the fix the handler runs after the kernel, not beside it

WAITS: dict[str, Callable[[Device, Stream, dict[str, Any]], object]] = {
    "Stream.synchronize": lambda device, stream, made: stream.synchronize(),
    "Device.synchronize": lambda device, stream, made: device.synchronize(),
    "Event.synchronize": lambda device, stream, made: made["event"].synchronize(),
    "DeviceMemory.close": lambda device, stream, made: made["memory"].close(),
    "PinnedMemory.close": lambda device, stream, made: made["pinned"].close(),
    "RegisteredMemory.close": lambda device, stream, made: made["registered"].close(),
}


class Interrupted(Exception):
    """Raised by the signal handler."""


@pytest.fixture
def alarms() -> Iterator[list[int]]:
    """A signal every 5 ms; the third one raises. What came is in the list."""
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 3:
            raise Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    yield came
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("wait", WAITS)
def test_a_signal_ends_the_wait(driver: Driver, wait: str, alarms: list[int]) -> None:
    assert driver.sim is not None
    device = driver.device()
    stream = device.stream()
    made = {
        "memory": device.alloc(16),
        "pinned": device.alloc_pinned(16),
        "registered": device.register(bytearray(1 << 16)),
    }
    device.kernels.spin(SPIN_NS, stream=stream)
    made["event"] = stream.record()
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    with pytest.raises(Interrupted):
        WAITS[wait](device, stream, made)
    assert not stream.query()
    driver.sim.reset()  # the kernel and all else goes with it


def test_a_handler_that_raises_nothing_lets_the_wait_go_on(driver: Driver) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    try:
        with driver.device().stream() as stream:
            driver.device().kernels.spin(100_000_000, stream=stream)
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            stream.synchronize()
            assert stream.query()
            driver.device().kernels.spin(30_000_000, stream=stream)
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            driver.device().synchronize()
            assert stream.query()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(came) == 2


def test_a_free_that_was_interrupted_still_frees(driver: Driver, alarms: list[int]) -> None:
    device = driver.device()
    assert driver.sim is not None
    with device.stream() as stream:
        memory = device.alloc(16)
        device.kernels.spin(100_000_000, stream=stream)
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        with pytest.raises(Interrupted):
            memory.close()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert memory.closed
        stream.synchronize()
        while driver.sim.live_objects()["device"]:
            pass


def test_registered_memory_stays_while_an_interrupted_call_still_waits(
    driver: Driver, alarms: list[int]
) -> None:
    assert driver.sim is not None
    device = driver.device()
    stream, data = device.stream(), bytearray(1 << 16)
    registered = device.register(data)
    device.kernels.spin(SPIN_NS, stream=stream)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    with pytest.raises(Interrupted):
        registered.close()
    assert registered.closed
    del registered
    with pytest.raises(BufferError):
        data.append(0)  # would move it
    driver.sim.reset()


def waits_of(driver: Driver) -> dict[str, int]:
    """The calls that a synchronise of a stream, an event and a device, and a free, make."""
    assert driver.sim is not None
    device = driver.device()
    with device.stream() as stream:
        device.kernels.spin(1000, stream=stream)
        event = stream.record()
        memory = device.alloc(16)
        driver.sim.reset_call_counts()
        stream.synchronize()
        event.synchronize()
        device.synchronize()
        memory.close()
        counts = driver.sim.call_counts()
    return {name: count for name, count in counts.items() if name != "cuCtxGetCurrent"}


BLOCKING = {
    "cuStreamSynchronize": 1,
    "cuEventSynchronize": 1,
    "cuCtxSynchronize": 1,
    "cuMemFree_v2": 1,
}


@pytest.mark.sim(clock="virtual")
def test_on_the_virtual_clock_a_wait_is_one_call(driver: Driver) -> None:
    assert waits_of(driver) == BLOCKING


def test_on_another_thread_a_wait_is_one_call(driver: Driver) -> None:
    found: list[dict[str, int]] = []
    driver.device().kernels.spin(1, stream=driver.device().legacy_stream)
    thread = threading.Thread(target=lambda: found.append(waits_of(driver)))
    thread.start()
    thread.join()
    assert [{name: calls[name] for name in BLOCKING} for calls in found] == [BLOCKING]
    assert "cuStreamQuery" not in found[0]
    assert "cuEventQuery" not in found[0]


@pytest.mark.parametrize("mode", ["global", "relaxed"])
def test_a_wait_beside_a_capture_is_judged_by_the_mode_of_its_thread(
    driver: Driver, mode: str
) -> None:
    """Another thread's wait while somebody captures breaks the capture, unless its mode allows it:
    the mode is that of the main thread, which asks, whichever thread makes the call."""
    graphs = Graphs(driver)
    library = ctypes.CDLL(driver.path)
    kept = ctypes.c_int(MODES[mode])
    with driver.device().stream() as stream, driver.device().alloc(16) as memory:
        library.cuThreadExchangeStreamCaptureMode(ctypes.byref(kept))
        try:
            graphs.begin(stream)
            if mode == "relaxed":
                memory.close()
                made = Graph(RawCalls(driver))
                assert graphs.end(stream, made) == 0
                made.close()
            else:
                with pytest.raises(DriverError, match="cuCtxSynchronize failed"):
                    driver.device().synchronize()
                assert graphs.end(stream) == INVALIDATED
        finally:
            library.cuThreadExchangeStreamCaptureMode(ctypes.byref(kept))


def test_a_wait_that_is_not_interrupted_is_the_drivers_own(driver: Driver) -> None:
    """Memory of cuMemFreeAsync goes back at a synchronisation, not at a query."""
    assert driver.sim is not None
    device = driver.device()
    with device.stream() as stream:
        device.kernels.spin(1_000_000, stream=stream)
        event = stream.record()
        driver.sim.reset_call_counts()
        event.synchronize()
        stream.synchronize()
        counts = driver.sim.call_counts()
        assert (counts["cuEventSynchronize"], counts["cuStreamSynchronize"]) == (1, 1)
