"""Chapter: the same copies and kernels in one stream, and in two that overlap."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

import msgspec

from vramkit.demo.chapter import Chapter, ChapterResult, Context, same_results
from vramkit.doctor.clock import clock_of
from vramkit.report import blocks
from vramkit.report.units import bytes_text, percent_text, time_text

if TYPE_CHECKING:
    from vramkit.driver import Device, DeviceMemory, PinnedMemory, Stream, TimelineSpan

GROUPS = 4
GROUP_BYTES = 64 << 20
REPEATS = 5
SHOWN = """\
for group in groups:
    device.copy(slot[group], weights[group], stream=copies)
    arrived = copies.record()

    compute.wait(arrived)        # on the card: the host never waits
    use(slot[group], stream=compute)
"""


def run(context: Context) -> ChapterResult:
    device = context.device
    with ExitStack() as stack:
        work = _Work(device, stack)
        one = work.measure(work.one_stream)
        two = work.measure(work.two_streams)
        one_spans = work.record(work.one_stream)
        two_spans = work.record(work.two_streams)
    same = one.checksum == two.checksum
    saving = 1 - two.seconds / one.seconds
    tone: blocks.Tone = "good" if saving > 0 and same else "plain"
    scale = max(span.end for span in one_spans + two_spans)
    facts: dict[str, object] = {
        "groups": GROUPS,
        "group_bytes": GROUP_BYTES,
        "one_stream_seconds": one.seconds,
        "two_streams_seconds": two.seconds,
        "saving": saving,
        "same_results": same,
    }
    size = bytes_text(GROUP_BYTES)
    return ChapterResult(
        [
            blocks.Text(
                f"{GROUPS} groups of weights, {size} each, come from pinned host memory, and each "
                "is used by a kernel once it has arrived. In one stream each step waits for the "
                "one before. In two, the next group is copied while the current one is in use; an "
                "event for each group keeps the order that matters."
            ),
            blocks.Code("Two streams, one event a group", SHOWN),
            _lanes("One stream", one_spans, scale),
            _lanes("Two streams", two_spans, scale),
            blocks.Figures(
                [
                    blocks.Figure(time_text(one.seconds), "one stream"),
                    blocks.Figure(time_text(two.seconds), "two streams", tone),
                    blocks.Figure(percent_text(saving), "less time", tone),
                ]
            ),
            blocks.Text(
                f"Median of {REPEATS} runs ({_spread(one)} in one stream, {_spread(two)} in two)."
            ),
            same_results(same, "groups"),
        ],
        facts,
    )


def _spread(measured: _Measured) -> str:
    low, high = time_text(min(measured.readings)), time_text(max(measured.readings))
    return f"always {low}" if low == high else f"{low} to {high}"


class _Measured:
    def __init__(self, readings: list[float], checksum: int) -> None:
        self.readings = readings
        self.seconds = statistics.median(readings)
        self.checksum = checksum


class _Work:
    """The buffers, the streams and the two ways to order the same work."""

    def __init__(self, device: Device, stack: ExitStack) -> None:
        self.device = device
        self.clock = clock_of(device.driver)
        self.copies: Stream = stack.enter_context(device.stream())
        self.compute: Stream = stack.enter_context(device.stream())
        self.slots: list[DeviceMemory] = [
            stack.enter_context(device.alloc(GROUP_BYTES)) for _ in range(GROUPS)
        ]
        self.weights: PinnedMemory = stack.enter_context(device.alloc_pinned(GROUP_BYTES))
        self.sum: DeviceMemory = stack.enter_context(device.alloc(8))
        self.weights.write(bytes(range(256)) * (GROUP_BYTES // 256))
        # A layer's computing is taken as long as its copy: where overlap has most to give.
        self.spin_ns = round(self._seconds(lambda: self._copy(0, self.copies)) * 1e9)

    def one_stream(self) -> None:
        for group in range(GROUPS):
            self._copy(group, self.copies)
            self._use(group, self.copies)

    def two_streams(self) -> None:
        for group in range(GROUPS):
            self._copy(group, self.copies)
            with self.copies.record() as arrived:
                self.compute.wait(arrived)
            self._use(group, self.compute)

    def measure(self, way: Callable[[], None]) -> _Measured:
        """The first run warms up; the checksum is that of one run."""
        self._seconds(way)
        self.device.fill(self.sum, 0)
        self.device.synchronize()
        self._seconds(way)
        result = bytearray(8)
        self.device.copy(result, self.sum)
        readings = [self._seconds(way) for _ in range(REPEATS)]
        return _Measured(readings, int.from_bytes(result, "little"))

    def record(self, way: Callable[[], None]) -> list[TimelineSpan]:
        """What ran when, from the start of the first piece."""
        with self.device.timeline() as timeline:
            self._seconds(way)
        return timeline.spans

    def _copy(self, group: int, stream: Stream) -> None:
        self.device.copy(self.slots[group], self.weights, stream=stream)

    def _use(self, group: int, stream: Stream) -> None:
        self.device.kernels.spin(self.spin_ns, stream=stream)
        self.device.kernels.checksum(self.slots[group], GROUP_BYTES // 4, self.sum, stream=stream)

    def _seconds(self, way: Callable[[], None]) -> float:
        self.device.synchronize()
        start = self.clock()
        way()
        self.device.synchronize()
        return self.clock() - start


def _lanes(title: str, ran: list[TimelineSpan], scale: float) -> blocks.Timeline:
    """A lane a stream, in the order of their first work; a group's two kernels are one bar."""
    lanes: dict[int, list[blocks.Span]] = {}
    groups = {"copy_in": 0, "kernel": 0}
    for span in ran:
        lane = lanes.setdefault(span.stream, [])
        if "checksum" in span.name:
            lane[-1] = msgspec.structs.replace(lane[-1], end=span.end)
            continue
        kind: Literal["kernel", "copy_in"] = "kernel" if "spin" in span.name else "copy_in"
        groups[kind] += 1
        word = "compute" if kind == "kernel" else "copy"
        lane.append(blocks.Span(f"{word} {groups[kind]}", span.start, span.end, kind))
    names = ["copies", "compute"] if len(lanes) == 2 else ["one stream"]
    drawn = [blocks.Lane(name, spans) for name, spans in zip(names, lanes.values(), strict=True)]
    return blocks.Timeline(title, drawn, scale)


CHAPTER = Chapter("Copying while computing", run)
