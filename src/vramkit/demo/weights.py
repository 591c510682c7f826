"""Chapter: a model through a ring of two layers, beside copying first and then computing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramkit.demo.chapter import Chapter, ChapterResult, Context, same_results
from vramkit.doctor.clock import clock_of
from vramkit.report import blocks
from vramkit.report.units import bytes_text, time_text
from vramkit.weights import Group, Slab, WeightManager
from vramkit.weights.passes import run_passes
from vramkit.weights.recording import RecordedPass, record_passes

if TYPE_CHECKING:
    from vramkit.driver import Device, DeviceMemory, Stream, TimelineSpan

LAYERS = 12
SIZES = {"attn": 8 << 20, "ffn": 12 << 20}
REPEATS = 3
SHOWN = """\
with WeightManager(device, groups, sources, budget=two_layers) as weights:
    for group in groups:
        layer, name = group.layer, group.name
        with weights.using(layer, name, compute_stream=compute) as place:
            use(place, stream=compute)  # what follows is copied meanwhile
"""


def run(context: Context) -> ChapterResult:
    with ExitStack() as stack:
        model = _Model(context.device, stack)
        plain = model.plain()
        ring = model.through_ring()
    bound, same = model.copies_alone, plain.checksum == ring.checksum
    facts: dict[str, object] = {
        "layers": LAYERS,
        "weights_bytes": model.nbytes,
        "device_bytes": ring.device_bytes,
        "bound_seconds": bound,
        "plain_seconds": plain.seconds,
        "ring_seconds": ring.seconds,
        "of_bound": ring.seconds / bound,
        "misses": ring.recorded.time.misses,
        "same_results": same,
    }
    tone: blocks.Tone = "good" if ring.seconds < plain.seconds and same else "plain"
    scale = max(plain.seconds, plain.spans[-1].end, ring.recorded.time.wall)
    return ChapterResult(
        [
            blocks.Text(
                f"{LAYERS} layers have {bytes_text(model.nbytes)} of weights in pinned memory. "
                f"On the card they get {bytes_text(ring.device_bytes)}, as much as two layers: a "
                "ring, in which each group of weights is copied behind the work that used its "
                "place before. A layer computes as long as its copy takes, where overlap has most "
                "to give and is hardest to reach."
            ),
            blocks.Code("The weight manager", SHOWN),
            _plain_lanes(plain.spans, model.groups, scale),
            ring.recorded.timeline("Through the ring, a pass behind another", scale=scale),
            blocks.Figures(
                [
                    blocks.Figure(time_text(plain.seconds), "copy, then compute"),
                    blocks.Figure(time_text(ring.seconds), "through the ring", tone),
                    blocks.Figure(time_text(bound), "the bound"),
                    blocks.Figure(f"{ring.seconds / bound:.3f}", "of the bound", tone),
                ]
            ),
            blocks.Text(
                "The bound is the time of the copies alone; the work alone takes as long. "
                f"Medians of {REPEATS} passes."
            ),
            same_results(same, "weights"),
        ],
        facts,
    )


@dataclass(frozen=True)
class _Plain:
    seconds: float
    checksum: int
    spans: list[TimelineSpan]


@dataclass(frozen=True)
class _Ring:
    seconds: float
    checksum: int
    recorded: RecordedPass
    device_bytes: int


class _Model:
    """The weights in host memory, and the two ways to run a pass over them."""

    def __init__(self, device: Device, stack: ExitStack) -> None:
        self.device = device
        self.clock = clock_of(device.driver)
        self.groups = [Group(layer, *part) for layer in range(LAYERS) for part in SIZES.items()]
        self.nbytes = sum(group.nbytes for group in self.groups)
        self.stream: Stream = stack.enter_context(device.stream())
        self.place: DeviceMemory = stack.enter_context(device.alloc(max(SIZES.values())))
        self.sum: DeviceMemory = stack.enter_context(device.alloc(8))
        store = stack.enter_context(Slab(device, self.nbytes))
        self.sources: list[int] = []
        offset = 0
        for number, group in enumerate(self.groups):
            self.sources.append(store.address + offset)
            store.write(bytes([number + 1]) * group.nbytes, offset)
            offset += group.nbytes
        self._seconds(self._copy_all)  # warms up
        self.copies_alone = self._seconds(self._copy_all)
        rate = self.nbytes / self.copies_alone
        self.compute_seconds = [group.nbytes / rate for group in self.groups]

    def plain(self) -> _Plain:
        def spin(number: int) -> None:
            nanoseconds = round(self.compute_seconds[number] * 1e9)
            self.device.kernels.spin(nanoseconds, stream=self.stream)

        seconds = [self._seconds(lambda: self._copy_all(spin)) for _ in range(REPEATS)]
        with self.device.timeline() as timeline:
            self._copy_all(spin)
        self.device.fill(self.sum, 0, stream=self.stream)
        self._copy_all(lambda number: self._add_checksum(number, self.place.address))
        return _Plain(statistics.median(seconds), self._checksum(), timeline.spans)

    def through_ring(self) -> _Ring:
        budget = 2 * sum(SIZES.values())
        with WeightManager(self.device, self.groups, self.sources, budget=budget) as weights:
            # This pass is the first one: those behind it are steady.
            self.device.fill(self.sum, 0, stream=self.stream)
            for number, group in enumerate(self.groups):
                place = weights.using(group.layer, group.name, compute_stream=self.stream)
                with place as address:
                    self._add_checksum(number, address)
            checksum = self._checksum()
            passes = run_passes(weights, self.compute_seconds, passes=REPEATS)
            (recorded,) = record_passes(weights, self.compute_seconds, passes=1)
            seconds = statistics.median(each.wall for each in passes)
            return _Ring(seconds, checksum, recorded, weights.layout.device_bytes)

    def _copy_all(self, use: Callable[[int], None] | None = None) -> None:
        """In one stream: each group to the same place, and what uses it."""
        for number, group in enumerate(self.groups):
            source = self.sources[number]
            self.device.copy(self.place, source, group.nbytes, stream=self.stream)
            if use is not None:
                use(number)

    def _add_checksum(self, number: int, address: int) -> None:
        words = self.groups[number].nbytes // 4
        self.device.kernels.checksum(address, words, self.sum, stream=self.stream)

    def _checksum(self) -> int:
        self.stream.synchronize()
        result = bytearray(8)
        self.device.copy(result, self.sum)
        return int.from_bytes(result, "little")

    def _seconds(self, work: Callable[[], None]) -> float:
        self.stream.synchronize()
        start = self.clock()
        work()
        self.stream.synchronize()
        return self.clock() - start


def _plain_lanes(
    spans: Sequence[TimelineSpan], groups: Sequence[Group], scale: float
) -> blocks.Timeline:
    """Copies and kernels take turns, a pair for each group."""
    lanes = {name: blocks.Lane(name, []) for name in ("copy", *SIZES)}
    for number, span in enumerate(spans):
        group = groups[number // 2]
        if number % 2:
            bar = blocks.Span(f"compute {group}", span.start, span.end, "kernel")
            lanes[group.name].spans.append(bar)
        else:
            bar = blocks.Span(f"copy {group}", span.start, span.end, "copy_in")
            lanes["copy"].spans.append(bar)
    return blocks.Timeline("Copy, then compute", list(lanes.values()), scale)


CHAPTER = Chapter("Weights that do not fit", run)
