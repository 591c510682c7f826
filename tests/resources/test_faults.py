"""Any driver call may fail: the error is told, nothing leaks, and the resource goes on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from vramkit.driver import Device, Driver, DriverError, Stream
from vramkit.resources import Resource

from .makers import MAKERS, MIB, made

INVALID_VALUE = 1
# A fault makes a call do nothing: the event stays, and nobody could help it.
NOT_ASKED = {"cuEventDestroy_v2"}


def run(resource: Resource, device: Device, live: list[int]) -> None:
    """Touches each path: own memory again, another stream's, frees across streams, a full slab."""

    def free(stream: Stream | None = None) -> None:
        resource.free(live[-1], stream=stream)
        live.pop()

    with device.stream() as first, device.stream() as second:
        try:
            for size in (4096, 20 * MIB):
                live.append(resource.malloc(size, first))
                device.fill(live[-1], 1, size, stream=first)
                free()
                live.append(resource.malloc(size, second))
                first.wait(second)
                free(first)
            live.append(resource.malloc(30 * MIB, second))
            free()
            live.append(resource.malloc(MIB, first))
        finally:
            device.synchronize()
    if live:
        free()


@pytest.mark.sim_only
@pytest.mark.sim(data=False)
@pytest.mark.parametrize("name", sorted(MAKERS.keys() - {"pool"}))
def test_any_call_may_fail(driver: Driver, name: str, tmp_path: Path) -> None:
    sim = driver.sim
    assert sim is not None
    device = driver.device()
    with made(name, device, tmp_path) as resource:
        sim.reset_call_counts()
        run(resource, device, [])
        counts = sim.call_counts()
    calls = [call for call in counts if call.startswith(("cuMem", "cuEvent"))]
    for call in sorted({*calls} - NOT_ASKED):
        for nth in range(1, counts[call] + 1):
            with made(name, device, tmp_path) as resource:
                live: list[int] = []
                sim.inject(call, nth=nth, code=INVALID_VALUE)
                with suppress(DriverError):
                    run(resource, device, live)
                sim.clear_faults()
                while live:
                    resource.free(live.pop())
                run(resource, device, [])
            left = {kind: n for kind, n in sim.live_objects().items() if n}
            assert left.keys() <= {"contexts", "modules"}, (call, nth, left)


@pytest.mark.sim_only
@pytest.mark.sim(data=False)
@pytest.mark.parametrize("name", sorted(MAKERS.keys() - {"pool"}))
def test_any_call_of_opening_may_fail(driver: Driver, name: str, tmp_path: Path) -> None:
    sim = driver.sim
    assert sim is not None
    device = driver.device()
    sim.reset_call_counts()
    with made(name, device, tmp_path):
        counts = {call: n for call, n in sim.call_counts().items() if call.startswith("cuMem")}
    for call in counts:
        sim.inject(call, code=INVALID_VALUE)
        with pytest.raises(DriverError, match=f"{call} failed"), made(name, device, tmp_path):
            pass
        sim.clear_faults()
        left = {kind: n for kind, n in sim.live_objects().items() if n}
        assert left.keys() <= {"contexts", "modules"}, (call, left)
