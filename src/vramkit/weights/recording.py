"""What ran when in a pass, by group: for the report, the HTML page and Chrome's trace viewer.

Lanes: CPU (where the host was blocked for weights), in step (where it waited for the card before it
went on), copy, one for each name of a group, and beside (what is not of the pass). On the simulated
GPU all of it is seen, exactly. On a card record_passes() has what was issued through Device: the
copies of a manager are not among it. measured_pass() has the copies too, by events around them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import cycle
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from rich.console import Console

from vramkit.driver.timeline import TimelineSpan, chrome_trace, moved, save_chrome_trace
from vramkit.report import blocks
from vramkit.report.html import page
from vramkit.report.terminal import print_block
from vramkit.report.units import bytes_text, time_text
from vramkit.weights.passes import Host, HostWait, Passes, PassTime

if TYPE_CHECKING:
    from vramkit.driver import Device
    from vramkit.weights.experts import ExpertCache
    from vramkit.weights.layout import Group
    from vramkit.weights.manager import WeightManager
    from vramkit.weights.timing import MeasuredPass

CPU, IN_STEP, COPY, BESIDE = "CPU", "in step", "copy", "beside"
NOT_SEEN = "The copies of the weights are not drawn: a timeline of a card does not see them."

Kind = Literal["copy_in", "kernel", "other"]


@dataclass(frozen=True)
class RecordedPass:
    """Spans are in seconds from the start of the pass, cut off at its start and end."""

    device: Device
    time: PassTime
    spans: tuple[TimelineSpan, ...]
    names: tuple[str, ...]
    """Of the groups, in the order of their use."""
    sees_copies: bool

    def lane(self, name: str) -> list[TimelineSpan]:
        return [span for span in self.spans if span.lane == name]

    def copied_beside(self, layers: range | None = None) -> dict[str, int]:
        """Bytes of weights that were copied while groups of each name computed, of all layers or of
        some. Within a copy the rate is taken as even. All are 0 if copies were not seen."""
        copies = self.lane(COPY)
        wanted = "" if layers is None else _of_layers(layers)
        return {
            name: round(
                sum(
                    _shared(copy, work)
                    for work in self.lane(name)
                    if work.name.startswith(wanted)
                    for copy in copies
                )
            )
            for name in self.names
        }

    def timeline(
        self, title: str, *, layers: range | None = None, scale: float | None = None
    ) -> blocks.Timeline:
        """For a report: the whole pass, or from the end of the layer before `layers` to the end of
        the last of them. `scale` is the length of the axis in seconds, by default that of what is
        drawn."""
        begin, end = (0.0, self.time.wall) if layers is None else self._window(layers)
        inside = _cut(self.spans, begin, end)
        lanes = [
            blocks.Lane(name, _bars(span for span in inside if span.lane == name))
            for name in (CPU, IN_STEP, COPY, *self.names, BESIDE)
        ]
        always = {*self.names, COPY} if self.sees_copies else {*self.names}
        return blocks.Timeline(
            title,
            [lane for lane in lanes if lane.spans or lane.name in always],
            end - begin if scale is None else scale,
            "" if self.sees_copies else NOT_SEEN,
        )

    def _window(self, layers: range) -> tuple[float, float]:
        work = [span for span in self.spans if span.lane in self.names]
        wanted = _of_layers(layers)
        inside = [number for number, span in enumerate(work) if span.name.startswith(wanted)]
        if not inside:
            raise ValueError(f"layers is {layers}; none of them is in this pass")
        first = inside[0]
        return (work[first - 1].end if first else 0.0), work[inside[-1]].end

    def document(self, title: str) -> blocks.Document:
        """The whole pass, where its time went, and which bytes travelled beside which work."""
        return blocks.Document(
            title,
            f"A pass took {time_text(self.time.wall)}.",
            [("device", self.device.name), ("driver", self.device.driver.description)],
            [blocks.Section("What ran when", self._blocks(title))],
        )

    def _blocks(self, title: str) -> list[blocks.Block]:
        time = self.time
        blocked, idle, wall = (time_text(t) for t in (time.host_blocked, time.stalled, time.wall))
        return [
            self.timeline(title),
            blocks.Table(
                ["CPU blocked for weights", "GPU idle", "wall", "misses"],
                [[blocked, idle, wall, str(time.misses)]],
                "Where the time went",
                [0, 1, 2, 3],
            ),
            blocks.Table(
                ["beside", "copied"],
                [[name, bytes_text(nbytes)] for name, nbytes in self._travelled().items()],
                "What travelled meanwhile",
                [1],
            ),
        ]

    def _travelled(self) -> dict[str, int]:
        """copied_beside(), and what was copied while nothing computed."""
        copied = self.copied_beside()
        return {**copied, "no work": max(0, self.time.copied_bytes - sum(copied.values()))}

    def text(self, title: str = "A pass", *, width: int = 100) -> str:
        """The timeline, where the time went, and which bytes travelled beside which work."""
        console = Console(file=StringIO(), width=width, color_system=None)
        for block in self._blocks(title):
            print_block(console, block)
        assert isinstance(console.file, StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().strip("\n").split("\n"))

    def to_json(self) -> bytes:
        """What document() says, in seconds and bytes, and all spans."""
        time = self.time
        return msgspec.json.encode(
            {
                "device": self.device.name,
                "driver": self.device.driver.description,
                "host_blocked_s": time.host_blocked,
                "gpu_idle_s": time.stalled,
                "wall_s": time.wall,
                "misses": time.misses,
                "copied_bytes": time.copied_bytes,
                "copied_beside": self._travelled(),
                "spans": [
                    {
                        "lane": span.lane,
                        "name": span.name,
                        "start_s": span.start,
                        "end_s": span.end,
                        "nbytes": span.nbytes,
                    }
                    for span in self.spans
                ],
            }
        )

    def save_html(self, path: str | PathLike[str], title: str = "A pass") -> None:
        """Write one page without references to others."""
        Path(path).write_text(page(self.document(title)), encoding="utf-8")

    def to_chrome_trace(self) -> dict[str, Any]:
        return chrome_trace(self.device, self.spans)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a Chrome trace, which chrome://tracing and ui.perfetto.dev open."""
        save_chrome_trace(path, self.to_chrome_trace())


def record_passes(
    manager: WeightManager,
    seconds: Sequence[float],
    *,
    passes: int = 2,
    ensure_cost: float = 0.0,
    streams: Literal[1, 2] = 1,
    host: Host = "ahead",
    beside: Callable[[int], None] | None = None,
) -> list[RecordedPass]:
    """run_passes(), and what ran when in each of them.

    Takes the log of the manager's copies: what was in it is gone, and it is off at the end.
    """
    groups = manager.layout.groups
    with Passes(manager, seconds, ensure_cost, streams, host, beside) as run:
        manager.log_copies()
        try:
            with manager.device.timeline() as timeline:
                times = [run.one() for _ in range(passes)]
        finally:
            copies = manager.log_copies(on=False)
        named = _named(timeline.spans, copies, groups, run.stream_ids)
    ran = moved(named, timeline.first_start)
    names = tuple(dict.fromkeys(group.name for group in groups))
    return [_pass(manager.device, time, ran, names) for time in times]


def _pass(
    device: Device, time: PassTime, ran: Sequence[TimelineSpan], names: tuple[str, ...]
) -> RecordedPass:
    waits = [
        TimelineSpan(wait.name, CPU if wait.for_weights else IN_STEP, 0, wait.start, wait.end)
        for wait in time.waits
    ]
    begin, end = time.start, time.start + time.wall
    # The clocks of host and card are set beside each other to some microseconds: work belongs to
    # the pass that has its middle, and is cut; what travels may belong to two.
    own = [
        span for span in ran if span.lane not in names or begin <= (span.start + span.end) / 2 < end
    ]
    inside = _cut([*waits, *own], begin, end)
    inside.sort(key=lambda span: span.start)
    return RecordedPass(device, time, tuple(inside), names, device.driver.sim is not None)


MOST_LANES = 6
"""Names of groups that have a lane each; more of them share one."""


def measured_pass(
    manager: WeightManager, experts: ExpertCache | None = None
) -> RecordedPass | None:
    """The last pass of a manager with `timing`, by events on the streams that compute and copy.
    None: last_pass() has none. Waits for its work, and for copies under way.

    A host that is ahead may wait for weights of this pass before the card has begun it: that is
    counted, and not drawn."""
    last, start = manager.last_pass(), manager.pass_start
    if last is None or start is None:
        return None
    groups = manager.layout.groups
    names = tuple(dict.fromkeys(groups[each.group].name for each in last.groups))
    shared = len(names) > MOST_LANES
    spans = [
        TimelineSpan(f"copy {group}", COPY, 0, begin, end, group.nbytes)
        for group, begin, end in manager.copy_times(start)
    ]
    used = [(str(groups[each.group]), groups[each.group].name, each) for each in last.groups]
    waited = last.waited
    wall = last.seconds
    routed = None if experts is None else experts.last_pass_since(start)
    if routed is not None:
        names, waited = (*names, "experts"), waited + routed.waited
        wall = max(wall, routed.seconds)
        for each in routed.groups:
            name = f"experts of layer {each.group}"
            spans.append(
                TimelineSpan(f"copy {name}", COPY, 0, each.asked, each.asked + each.waited)
            )
            used.append((name, "experts", each))
    for name, lane, each in used:
        begin = each.asked + each.waited
        lane = "compute" if shared else lane
        spans.append(TimelineSpan(f"compute {name}", lane, 1, begin, begin + each.used))
    waits = tuple(_host_waits(manager, last))
    spans += [TimelineSpan(wait.name, CPU, 0, wait.start, wait.end) for wait in waits]
    inside = sorted(_cut(spans, 0.0, wall), key=lambda span: span.start)
    copied = sum(span.nbytes for span in inside)
    time = PassTime(
        start=0.0,
        wall=wall,
        computed=wall - waited,
        host_blocked=last.host_blocked,
        copied_bytes=copied,
        misses=last.misses,
        waits=waits,
    )
    lanes = ("compute",) if shared else names
    return RecordedPass(manager.device, time, tuple(inside), lanes, True)


def _host_waits(manager: WeightManager, last: MeasuredPass) -> Iterator[HostWait]:
    """In seconds from the start of the pass."""
    start = manager.pass_start_on_host() if last.blocked else 0.0
    for each in last.blocked:
        yield HostWait(each.name, True, each.start - start, each.end - start)


def _named(
    spans: Sequence[TimelineSpan],
    copies: Sequence[tuple[Group, int]],
    groups: Sequence[Group],
    compute_streams: Container[int],
) -> list[TimelineSpan]:
    """A stream runs its copies in the order of the log, a group in one or more chunks. Kernels of
    the compute streams run in the order of the groups, one each."""
    logs: dict[int, deque[tuple[str, int]]] = {}
    for group, stream in copies:
        logs.setdefault(stream, deque()).append((f"copy {group}", group.nbytes))
    computed = cycle(groups)
    named = []
    for span in sorted(spans, key=lambda span: span.start):
        if span.stream in logs:
            name, left = logs[span.stream].popleft()
            if left > span.nbytes:
                logs[span.stream].appendleft((name, left - span.nbytes))
            named.append(span._replace(name=name, lane=COPY))
        elif span.stream in compute_streams:
            group = next(computed)
            named.append(span._replace(name=f"compute {group}", lane=group.name))
        else:
            named.append(span._replace(lane=BESIDE))
    return named


def _of_layers(layers: range) -> tuple[str, ...]:
    """What the names of their kernels begin with."""
    return tuple(f"compute {layer}." for layer in layers)


def _cut(spans: Iterable[TimelineSpan], begin: float, end: float) -> list[TimelineSpan]:
    """What of the spans lies between these times, which begin is 0 of; bytes by their share."""
    found = []
    for span in spans:
        start, stop = max(span.start, begin), min(span.end, end)
        if start >= stop:
            continue
        share = (stop - start) / (span.end - span.start)
        found.append(
            span._replace(start=start - begin, end=stop - begin, nbytes=round(span.nbytes * share))
        )
    return found


def _shared(copy: TimelineSpan, work: TimelineSpan) -> float:
    both = min(copy.end, work.end) - max(copy.start, work.start)
    return copy.nbytes * both / (copy.end - copy.start) if both > 0 else 0.0


CLOSE = 20e-6
"""Seconds between chunks of one copy that are drawn as one bar: what a copy takes to begin."""


def _bars(spans: Iterable[TimelineSpan]) -> list[blocks.Span]:
    bars: list[blocks.Span] = []
    for span in spans:
        if bars and bars[-1].name == span.name and span.start - bars[-1].end <= CLOSE:
            bars[-1] = msgspec.structs.replace(bars[-1], end=span.end)
        else:
            bars.append(blocks.Span(span.name, span.start, span.end, _kind(span)))
    return bars


def _kind(span: TimelineSpan) -> Kind:
    if span.lane == COPY:
        return "copy_in"
    return "other" if span.lane in (CPU, IN_STEP, BESIDE) else "kernel"
