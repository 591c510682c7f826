"""What `vramkit record` writes is read again: the same blocks, streams, threads and order."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, assume, given, settings
from soak import rounds

from vramkit.lab.traces import Trace, read_traces
from vramkit.lab.traces.trace import Kind as Event
from vramkit.record.raw import Kind, RawRecord, RawTrace
from vramkit.record.run import write_trace

KINDS = [
    Kind.ALLOCATION,
    Kind.FREE,
    Kind.HANDLE,
    Kind.HANDLE_RELEASED,
    Kind.MAPPING,
    Kind.UNMAPPING,
    Kind.LAUNCH,
    Kind.EVENT_RECORD,
    Kind.EVENT_WAIT,
    Kind.EVENT_DONE,
    Kind.STREAM_DONE,
    Kind.CONTEXT_DONE,
    Kind.STREAM_DESTROYED,
]
CALLS = ["cuMemAllocAsync", "cuMemFree_v2", "cuMemFreeAsync", "cuMemCreate"]
MIB = 1 << 20


@st.composite
def records(draw: st.DrawFn) -> list[RawRecord]:
    found = []
    for number in range(draw(st.integers(1, 60))):
        kind = draw(st.sampled_from(KINDS))
        subject = draw(st.integers(1, 4))
        if kind in (Kind.MAPPING, Kind.UNMAPPING):
            subject *= 4 * MIB
        found.append(
            RawRecord(
                time_ns=7 * number,
                stream=draw(st.sampled_from([0, 1, 2, 77, 78])),
                object=subject,
                bytes=4 * MIB if kind == Kind.UNMAPPING else draw(st.integers(1, 4)) * MIB,
                context=draw(st.integers(1, 4)) if kind == Kind.MAPPING else 0,
                thread=draw(st.sampled_from([501, 502, 503])),
                repeats=draw(st.integers(1, 1000)),
                code=draw(st.sampled_from([0, 0, 0, 2])) if kind == Kind.ALLOCATION else 0,
                call=draw(st.sampled_from(CALLS)),
                captured=kind in (Kind.ALLOCATION, Kind.FREE) and draw(st.integers(0, 9)) == 0,
                kind=kind,
            )
        )
    return found


Row = tuple[str, int, int | None, int, int]
"""Word, number, stream, thread and time."""


def rows_of_lines(lines: Iterable[str]) -> list[Row]:
    """Of the lines that are events of a trace, read in the plainest way."""
    rows: list[Row] = []
    recorded = set()
    for line in lines:
        fields = line.replace("+", "+,").replace("-", "-,").split(",")
        match fields:
            case ["+", block, _, stream, thread, at, _, _]:
                rows.append(("+", int(block), int(stream), int(thread), int(at)))
            case ["-", block, stream, thread, at, call]:
                on = int(stream) if "Async" in call else None
                rows.append(("-", int(block), on, int(thread), int(at)))
            case ["launch", count, stream, thread, at, _]:
                rows.append(("launch", int(count), int(stream), int(thread), int(at)))
            case ["event", event, stream, thread, at]:
                recorded.add(event)
                rows.append(("event", int(event), int(stream), int(thread), int(at)))
            case ["wait", stream, event, thread, at]:
                rows.append(("wait", int(event), int(stream), int(thread), int(at)))
            case ["done", "stream", stream, thread, at, _]:
                rows.append(("stream", 0, int(stream), int(thread), int(at)))
            case ["done", "event", event, thread, at, _] if event in recorded:
                rows.append(("event done", int(event), None, int(thread), int(at)))
            case ["done", "device", _, thread, at, _]:
                rows.append(("device", 0, None, int(thread), int(at)))
    return rows


WORDS = ["+", "-", "launch", "event", "wait", "event done", "stream", "device"]


def rows_of_trace(trace: Trace) -> list[Row]:
    rows: list[Row] = []
    columns = (trace.kinds, trace.what, trace.streams, trace.threads, trace.times)
    for kind, what, stream, thread, at in zip(*columns, strict=True):
        on = None if kind in (Event.EVENT_DONE, Event.DEVICE_DONE) or stream < 0 else stream
        rows.append((WORDS[kind], what, on, thread, at))
    return rows


def same(lines: list[Row], found: list[Row], own: dict[int, int | None]) -> None:
    """The numbers of streams, events and threads may be others, one for one."""
    names: dict[str, dict[int, int]] = {"stream": {}, "event": {}, "thread": {}}

    def agree(what: str, one: int, other: int) -> None:
        known = names[what]
        assert known.setdefault(one, other) == other
        assert len(set(known.values())) == len(known)

    assert [(row[0], row[4]) for row in lines] == [(row[0], row[4]) for row in found]
    for (word, number, stream, thread, _), (_, other, on, by, _) in zip(lines, found, strict=True):
        agree("thread", thread, by)
        if word in ("event", "wait", "event done"):
            agree("event", number, other)
        else:
            assert number == other
        if word == "-" and on is None:
            assert stream in (None, own[number])  # its own
        elif stream is not None and on is not None:
            agree("stream", stream, on)
        else:
            assert stream is None and on is None


@settings(
    max_examples=rounds(80, 5000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
@given(records())
def test_any_recording_is_read_as_it_was_written(tmp_path: Path, made: list[RawRecord]) -> None:
    path = tmp_path / "t.csv"
    (summary,) = write_trace([RawTrace(7, 1, 0, "driver", ["program"], False, made)], path)
    assume(summary.allocations)
    (trace,) = read_traces(path)
    lines = rows_of_lines(path.read_text().splitlines()[2:])
    own = {number: stream for word, number, stream, _, _ in lines if word == "+"}
    same(lines, rows_of_trace(trace), own)
    assert (trace.allocations, trace.peak_in_use) == (summary.allocations, summary.peak_bytes)
    assert trace.refused == summary.failed
    assert trace.sizes.tolist() == [
        int(line.split(",")[1]) for line in path.read_text().splitlines() if line[0] == "+"
    ]
