"""What ran on a device and when, for people and for Chrome's trace viewer."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from vramkit import _core
from vramkit.driver.types import Owner, SupportsCudaStream, integer

if TYPE_CHECKING:
    from vramkit.driver.device import Device

SPANS_KEPT = 100_000


class TimelineSpan(NamedTuple):
    """One operation. `stream` is the stream's id; seconds count from the first span's start."""

    name: str
    lane: str
    stream: int
    start: float
    end: float
    nbytes: int = 0


class Timeline(Owner):
    """Records a device's operations from `with` to its end, which waits for the device.

    On the simulated GPU the spans are exact and cost nothing. On a real card an event is recorded
    before and after each copy, fill and kernel that is issued through this Device, and nothing else
    is seen. That perturbs what is measured: it costs some microseconds of host time for each, and
    moves operations of one stream a little further apart. The newest `limit` spans are kept. A
    driver can record one timeline at a time.
    """

    def __init__(self, device: Device, limit: int = SPANS_KEPT) -> None:
        self.device = device
        self._limit = integer(limit, "limit", 1)
        self._spans: list[TimelineSpan] = []
        self._first = 0.0

    @property
    def spans(self) -> list[TimelineSpan]:
        """In order of their starts; empty until the with statement is left."""
        return list(self._spans)

    @property
    def first_start(self) -> float:
        """The host's clock at the start of the first span: seconds of Simulator.now() on the
        simulated GPU, of time.perf_counter() on a card, there as exact as the recording of an event
        on an idle card. 0 without spans."""
        return self._first

    def __enter__(self) -> Self:
        driver = self.device.driver
        driver.begin_timeline(self)
        try:
            self.device.synchronize()
            if driver.sim is not None:
                driver.sim.start_timeline(self._limit)
            else:
                self.device.recorder = EventRecorder(self.device, self._limit)
        except BaseException:
            driver.end_timeline(self)
            raise
        return self

    def __exit__(self, *args: object) -> None:
        sim = self.device.driver.sim
        recorder, self.device.recorder = self.device.recorder, None
        try:
            self.device.synchronize()
            if sim is not None:
                spans = _simulated_spans(sim.timeline(), self.device.ordinal)
            else:
                assert recorder is not None
                spans = recorder.spans()
            self._first = min((span.start for span in spans), default=0.0)
            self._spans = moved(spans, -self._first)
            if recorder is not None and spans:
                self._first += recorder.origin
        finally:
            if sim is not None:
                sim.start_timeline(0)
            elif recorder is not None:
                recorder.close()
            self.device.driver.end_timeline(self)

    def to_chrome_trace(self) -> dict[str, Any]:
        """The trace event format: one process for the device, one thread a lane; microseconds."""
        return chrome_trace(self.device, self._spans)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a Chrome trace, which chrome://tracing and ui.perfetto.dev open."""
        save_chrome_trace(path, self.to_chrome_trace())


def chrome_trace(device: Device, spans: Sequence[TimelineSpan]) -> dict[str, Any]:
    """Spans as a Chrome trace. Their names and lanes may be others than a Timeline gives them."""
    process = device.ordinal
    lanes = {lane: i for i, lane in enumerate(dict.fromkeys(s.lane for s in spans))}
    label = f"{device.name}; {device.driver.description}"
    events: list[dict[str, Any]] = [_metadata("process_name", process, 0, label)]
    events += [_metadata("thread_name", process, tid, lane) for lane, tid in lanes.items()]
    events += [
        {
            "ph": "X",
            "name": span.name,
            "ts": span.start * 1e6,
            "dur": (span.end - span.start) * 1e6,
            "pid": process,
            "tid": lanes[span.lane],
            "args": {"stream": span.stream, "bytes": span.nbytes},
        }
        for span in spans
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save_chrome_trace(path: str | PathLike[str], trace: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(trace, file)


def moved(spans: Sequence[TimelineSpan], seconds: float) -> list[TimelineSpan]:
    """The spans that much later, in order of their starts."""
    shifted = [span._replace(start=span.start + seconds, end=span.end + seconds) for span in spans]
    return sorted(shifted, key=lambda span: span.start)


def _metadata(name: str, process: int, thread: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": {"name": value}}


# The simulated GPU


class _SimulatedSpan(msgspec.Struct):
    """As simTimeline writes it."""

    name: str
    engine: str
    device: int
    stream: int
    start_ns: float
    end_ns: float
    bytes: int


def _simulated_spans(text: bytes, ordinal: int) -> list[TimelineSpan]:
    return [
        TimelineSpan(
            span.name,
            span.engine,
            span.stream,
            span.start_ns * 1e-9,
            span.end_ns * 1e-9,
            span.bytes,
        )
        for span in msgspec.json.decode(text, type=list[_SimulatedSpan])
        if span.device == ordinal
    ]


# A real card


class _Marked(NamedTuple):
    """An operation between two recorded events."""

    name: str
    lane: str
    stream: int
    nbytes: int
    begin: _core.Event
    end: _core.Event


class EventRecorder:
    """Records an event before and after each operation and reads them when all is over."""

    def __init__(self, device: Device, limit: int) -> None:
        self._device = device
        self._origin = device.event()
        self._marked: deque[_Marked] = deque(maxlen=limit)
        with device.legacy_stream as stream:
            self._origin.record(stream)
        self.origin = time.perf_counter()

    @contextmanager
    def operation(
        self, name: str, lane: str, stream: SupportsCudaStream | None, nbytes: int
    ) -> Iterator[None]:
        """A synchronous call runs in the legacy default stream."""
        queue = self._device.legacy_stream if stream is None else stream
        begin, end = self._device.event(), self._device.event()
        begin.record(queue)
        yield
        end.record(queue)
        number = _core.stream_id(self._device, queue)
        if len(self._marked) == self._marked.maxlen:
            self._drop(self._marked.popleft())
        self._marked.append(_Marked(name, lane, number, nbytes, begin, end))

    def spans(self) -> list[TimelineSpan]:
        """Everything must have finished."""
        return [
            TimelineSpan(
                marked.name,
                marked.lane,
                marked.stream,
                marked.begin.elapsed_since(self._origin),
                marked.end.elapsed_since(self._origin),
                marked.nbytes,
            )
            for marked in self._marked
        ]

    def close(self) -> None:
        for marked in self._marked:
            self._drop(marked)
        self._marked.clear()
        self._origin.close()

    def _drop(self, marked: _Marked) -> None:
        marked.begin.close()
        marked.end.close()
