"""The timeline of what ran, on both kinds of driver, and as a Chrome trace."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from vramkit.driver import Device, Driver, Timeline
from vramkit.driver.timeline import EventRecorder

SPIN_NS = 2_000_000
NBYTES = 1 << 20
MARGIN = 20e-6  # seconds: what the host takes to issue an event and an operation


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


def overlap(device: Device) -> Timeline:
    """A kernel in one stream beside a copy in another, then a second kernel after both."""
    with (
        device.stream() as compute,
        device.stream() as copies,
        device.alloc(NBYTES) as memory,
        device.alloc_pinned(NBYTES) as pinned,
    ):
        pinned.write(bytes(NBYTES))
        device.kernels.spin(1, stream=compute)
        device.synchronize()
        with device.timeline() as timeline:
            device.kernels.spin(SPIN_NS, stream=compute)
            device.copy(memory, pinned, stream=copies)
            compute.wait(copies)
            device.kernels.spin(SPIN_NS, stream=compute)
    return timeline


def test_spans_tell_what_ran_where_and_when(device: Device) -> None:
    timeline = overlap(device)
    assert [span.lane for span in timeline.spans] == ["compute", "host to device", "compute"]
    first, copy, second = timeline.spans
    assert first.start == 0
    assert first.name == second.name == "vk_spin"
    assert first.stream == second.stream != copy.stream
    assert copy.nbytes == NBYTES
    assert first.end - first.start == pytest.approx(SPIN_NS * 1e-9, rel=0.1)
    assert copy.start < first.end
    assert second.start >= first.end


def test_nothing_outside_is_recorded(device: Device) -> None:
    with device.stream() as stream:
        device.kernels.spin(1000, stream=stream)
        with device.timeline() as timeline:
            pass
        device.kernels.spin(1000, stream=stream)
        stream.synchronize()
    assert timeline.spans == []


def test_newest_spans_are_kept(device: Device) -> None:
    with device.stream() as stream, device.alloc(8) as memory:
        with device.timeline(limit=2) as timeline:
            device.kernels.spin(1000, stream=stream)
            device.fill(memory, 0, stream=stream)
            device.kernels.spin(1000, stream=stream)
        assert len(timeline.spans) == 2
        assert timeline.spans[-1].name == "vk_spin"
    with pytest.raises(ValueError, match="limit is 0"):
        device.timeline(limit=0)


def test_one_timeline_at_a_time(device: Device) -> None:
    with device.timeline(), pytest.raises(RuntimeError, match="already"), device.timeline():
        pass
    with device.timeline():
        pass


def test_chrome_trace_has_lanes_as_threads(device: Device, tmp_path: Path) -> None:
    timeline = overlap(device)
    path = tmp_path / "trace.json"
    timeline.save(path)
    trace = json.loads(path.read_text("utf-8"))
    assert trace == timeline.to_chrome_trace()
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    drawn = [event for event in events if event["ph"] == "X"]
    assert [names[event["tid"]] for event in drawn] == [span.lane for span in timeline.spans]
    for event, span in zip(drawn, timeline.spans, strict=True):
        assert event["ts"] == pytest.approx(span.start * 1e6)
        assert event["dur"] == pytest.approx((span.end - span.start) * 1e6)
        assert event["pid"] == device.ordinal
        assert event["args"] == {"stream": span.stream, "bytes": span.nbytes}
    process = next(e["args"]["name"] for e in events if e["name"] == "process_name")
    assert device.name in process
    assert ("simulated" in process) == device.driver.simulated


@pytest.mark.sim_only
def test_simulated_spans_repeat_exactly(driver: Driver) -> None:
    assert driver.sim is not None
    runs = []
    for _ in range(2):
        driver.sim.reset()
        runs.append(overlap(driver.device()).spans)
    assert runs[0] == runs[1]


@pytest.mark.sim_only
def test_event_recorder_sees_what_the_simulated_gpu_saw(device: Device) -> None:
    """The recorder of real cards, held against exact spans: it only adds the cost of its events."""
    with device.timeline() as timeline, device.stream() as stream, device.alloc(NBYTES) as memory:
        device.recorder = EventRecorder(device, 10)
        device.kernels.spin(SPIN_NS, stream=stream)
        device.fill(memory, 1)
        device.copy(bytearray(NBYTES), memory)
        device.synchronize()
        recorded = device.recorder.spans()
        device.recorder.close()
    exact = timeline.spans
    assert [span.lane for span in recorded] == [span.lane for span in exact]
    assert [span.stream for span in recorded] == [span.stream for span in exact]
    assert [span.nbytes for span in recorded][1:] == [NBYTES, NBYTES]
    shift = recorded[0].start - exact[0].start
    for seen, real in zip(recorded, exact, strict=True):
        assert seen.start - shift == pytest.approx(real.start, abs=MARGIN)
        assert seen.end - shift == pytest.approx(real.end, abs=MARGIN)


def test_the_first_start_is_on_the_clock_of_the_host(device: Device) -> None:
    clock = time.perf_counter if device.driver.sim is None else device.driver.sim.now
    with device.stream() as stream:
        with device.timeline() as timeline:
            device.kernels.spin(1000, stream=stream)
            stream.synchronize()
            asked = clock()
            device.kernels.spin(SPIN_NS, stream=stream)
            stream.synchronize()
            done = clock()
        second = timeline.spans[1]
        assert asked - MARGIN <= timeline.first_start + second.start
        assert timeline.first_start + second.end <= done + MARGIN
        with device.timeline() as empty:
            pass
    assert empty.first_start == 0
