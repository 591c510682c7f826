"""Every object closes once, closes twice without harm, and is refused afterwards."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from vramkit.driver import ClosedError, Device, Driver

MAKERS: dict[str, Callable[[Device], Any]] = {
    "Stream": lambda device: device.stream(),
    "Event": lambda device: device.event(),
    "DeviceMemory": lambda device: device.alloc(4096),
    "PinnedMemory": lambda device: device.alloc_pinned(4096),
    "RegisteredMemory": lambda device: device.register(bytearray(1 << 16)),
    "AddressRange": lambda device: device.reserve(device.granularity),
    "PhysicalMemory": lambda device: device.create(device.granularity),
}
USES: dict[str, Callable[[Device, Any], object]] = {
    "Stream": lambda device, stream: stream.synchronize(),
    "Event": lambda device, event: event.query(),
    "DeviceMemory": lambda device, memory: device.fill(memory, 0),
    "PinnedMemory": lambda device, memory: memory.read(),
    "RegisteredMemory": lambda device, memory: memory.write(b"x"),
    "AddressRange": lambda device, addresses: addresses.unmap(),
    "PhysicalMemory": lambda device, physical: physical.handle,
}
MEMORY = [kind for kind in MAKERS if kind not in ("Stream", "Event")]


def live(driver: Driver) -> int:
    """Objects the simulated GPU knows, those that the device itself keeps left out."""
    if driver.sim is None:
        return 0
    counts = driver.sim.live_objects()
    return sum(count for kind, count in counts.items() if kind not in ("contexts", "modules"))


@pytest.mark.parametrize("kind", MAKERS)
def test_with_closes_and_a_second_close_does_nothing(driver: Driver, kind: str) -> None:
    with MAKERS[kind](driver.device()) as made:
        assert not made.closed
        if driver.simulated:
            assert live(driver) == 1
    assert made.closed
    assert live(driver) == 0
    made.close()
    assert "closed" in repr(made)


@pytest.mark.parametrize("kind", MAKERS)
def test_with_closes_when_its_body_fails(driver: Driver, kind: str) -> None:
    with pytest.raises(ZeroDivisionError), MAKERS[kind](driver.device()) as made:
        raise ZeroDivisionError
    assert made.closed


@pytest.mark.parametrize("kind", MAKERS)
def test_use_after_close_is_one_clear_error(driver: Driver, kind: str) -> None:
    made = MAKERS[kind](driver.device())
    made.close()
    with pytest.raises(ClosedError, match=f"this {kind} is closed"):
        USES[kind](driver.device(), made)


@pytest.mark.sim_only
@pytest.mark.parametrize("kind", MAKERS)
def test_use_after_reset_is_one_clear_error(driver: Driver, kind: str) -> None:
    assert driver.sim is not None
    with MAKERS[kind](driver.device()) as made:
        driver.sim.reset()
        assert made.closed
        with pytest.raises(ClosedError, match=f"this {kind} is gone.*reset"):
            USES[kind](driver.device(), made)
        other = MAKERS[kind](driver.device())
    assert live(driver) == 1, "closing an object of before the reset touched one of after it"
    other.close()


@pytest.mark.parametrize("kind", MEMORY)
def test_unclosed_memory_is_warned_of_and_given_back(driver: Driver, kind: str) -> None:
    made = MAKERS[kind](driver.device())
    with pytest.warns(ResourceWarning, match=f"unclosed <{kind} of"):
        del made
        gc.collect()
    assert live(driver) == 0


@pytest.mark.parametrize("kind", ["Stream", "Event"])
def test_dropped_stream_or_event_is_destroyed(driver: Driver, kind: str) -> None:
    made = MAKERS[kind](driver.device())
    del made
    assert live(driver) == 0


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("kind", "call"), [("DeviceMemory", "cuMemFree_v2"), ("Stream", "cuStreamDestroy_v2")]
)
def test_failing_close_raises_once_and_stays_closed(driver: Driver, kind: str, call: str) -> None:
    assert driver.sim is not None
    made = MAKERS[kind](driver.device())
    driver.sim.inject(call, code=719)
    with pytest.raises(RuntimeError, match=call):
        made.close()
    assert made.closed
    made.close()
    driver.sim.reset()


@pytest.mark.sim_only
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", MAKERS)
def test_failing_destruction_raises_nothing(driver: Driver, kind: str) -> None:
    """filterwarnings=error of this suite would turn an unraisable exception into a failure."""
    assert driver.sim is not None
    made = MAKERS[kind](driver.device())
    driver.sim.lose_device()
    del made
    gc.collect()
    driver.sim.reset()
