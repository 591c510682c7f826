"""The host time of some driver calls, with Python's own share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vramkit.doctor.clock import Clock, spread
from vramkit.doctor.facts import CallCost

if TYPE_CHECKING:
    from vramkit.driver import Device, Stream

BLOCK = 1 << 20


def measure_calls(device: Device, clock: Clock, samples: int) -> list[CallCost]:
    with device.stream() as stream:
        costs = _stream_calls(device, stream, clock, samples)
    return costs + _alloc_calls(device, clock, samples) + _virtual_calls(device, clock, samples)


def _each(call: Callable[[], object], clock: Clock, times: int) -> float:
    """Seconds per call, over many in a row: one alone is too short for a clock."""
    start = clock()
    for _ in range(times):
        call()
    return (clock() - start) / times


def _stream_calls(device: Device, stream: Stream, clock: Clock, samples: int) -> list[CallCost]:
    with device.event(timing=False) as event, device.stream() as other:
        event.record(stream)
        stream.synchronize()
        calls: tuple[tuple[str, Callable[[], object]], ...] = (
            ("cuEventRecord", lambda: event.record(stream)),
            ("cuEventQuery", event.query),
            ("cuStreamWaitEvent", lambda: other.wait(event)),
            ("cuLaunchKernel", lambda: device.kernels.spin(0, stream=stream)),
        )
        costs = []
        for name, call in calls:
            call()
            readings = []
            for _ in range(samples):
                # Few enough to fit any launch queue, so that no call waits for the card.
                readings.append(_each(call, clock, 200))
                device.synchronize()
            costs.append(CallCost(call=name, nbytes=None, seconds=spread(readings)))
        return costs


def _alloc_calls(device: Device, clock: Clock, samples: int) -> list[CallCost]:
    allocs, frees = [], []
    device.alloc(BLOCK).close()
    for _ in range(samples * 4):
        start = clock()
        memory = device.alloc(BLOCK)
        allocated = clock()
        memory.close()
        frees.append(clock() - allocated)
        allocs.append(allocated - start)
    return [
        CallCost(call="cuMemAlloc", nbytes=BLOCK, seconds=spread(allocs)),
        CallCost(call="cuMemFree", nbytes=BLOCK, seconds=spread(frees)),
    ]


def _virtual_calls(device: Device, clock: Clock, samples: int) -> list[CallCost]:
    nbytes = device.granularity
    names = ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease")
    readings: list[list[float]] = [[] for _ in names]
    with device.reserve(nbytes) as addresses:
        for _ in range(samples * 4 + 1):
            times = [clock()]
            physical = device.create(nbytes)
            times.append(clock())
            addresses.map(physical)
            times.append(clock())
            addresses.set_access()
            times.append(clock())
            addresses.unmap()
            times.append(clock())
            physical.close()
            times.append(clock())
            for reading, start, end in zip(readings, times, times[1:], strict=False):
                reading.append(end - start)
    # The first round warms up.
    return [
        CallCost(call=name, nbytes=nbytes, seconds=spread(reading[1:]))
        for name, reading in zip(names, readings, strict=True)
    ]
