"""What the programs for the checker run on, and how a report is compared with what they expect."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeVar

from vramkit.driver import Driver, Event, Memory, PinnedMemory, Report, Site, Span, Stream

SIZE = 1 << 20  # bytes: long enough a copy that nothing has landed by chance
WORDS = SIZE // 4


class Closeable(Protocol):
    def close(self) -> None: ...


Thing = TypeVar("Thing", bound=Closeable)


class Bench:
    """The device under test, and things on it that are closed when the program is over."""

    def __init__(self, driver: Driver) -> None:
        assert driver.sim is not None
        self.device = driver.device()
        self.sim = driver.sim
        self._kept: list[Closeable] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        # What the program leaves undone must not add reports of its own.
        self.device.synchronize()
        for thing in reversed(self._kept):
            thing.close()

    def keep(self, thing: Thing) -> Thing:
        self._kept.append(thing)
        return thing

    def stream(self, *, blocking: bool = False) -> Stream:
        return self.keep(self.device.stream(blocking=blocking))

    def event(self) -> Event:
        return self.keep(self.device.event(timing=False))

    def memory(self) -> Memory:
        return self.keep(self.device.alloc(SIZE))

    def pinned(self) -> PinnedMemory:
        return self.keep(self.device.alloc_pinned(SIZE))


class Outcome(NamedTuple):
    """Where the two accesses meet, and the ids of the streams that make them; None: the host."""

    memory: Memory | Span
    first: int | None
    second: int | None


def met(memory: Memory | Span, first: Stream | int | None, second: Stream | int | None) -> Outcome:
    streams = [by.id if isinstance(by, Stream) else by for by in (first, second)]
    if isinstance(memory, Memory):
        memory = memory.at()
    return Outcome(memory, streams[0], streams[1])


Body = Callable[[Bench, bool], Outcome]
Side = tuple[str, str]  # call and access


@dataclass(frozen=True)
class Program:
    name: str
    body: Body
    kind: str
    first: Side
    second: Side

    @property
    def severity(self) -> str:
        return "warning" if self.kind == "implicit_wait" else "error"

    def line(self, marker: str) -> str:
        """File and line of a marked statement, as a report's frames name it."""
        lines, start = inspect.getsourcelines(self.body)
        (found,) = (n for n, line in enumerate(lines) if line.rstrip().endswith(f"# {marker}"))
        return f"{inspect.getsourcefile(self.body)}:{start + found} in "

    def advised(self, outcome: Outcome) -> set[str]:
        """What the advice must name: the calls and streams between which the order is missing."""
        if self.kind == "implicit_wait":
            return {f"stream {outcome.first} after {self.first[0]}", "cuMemFree"}
        if self.kind == "use_after_free":
            return {self.first[0], self.second[0], "allocate it again"}
        if self.kind == "out_of_bounds":
            return {self.first[0], self.second[0], "leaves the block"}
        named = {f"stream {outcome.first}", f"after {self.first[0]}"}
        if self.kind == "free_in_use":
            return {*named, f"before {self.second[0]}"}
        if outcome.second is None:
            return {*named, "cuStreamSynchronize", "cuEventSynchronize", "host"}
        named |= {f"stream {outcome.second}", f"before {self.second[0]}"}
        return {*named, "Record an event", "cuStreamWaitEvent"}

    def check(self, report: Report, outcome: Outcome) -> None:
        assert (report.kind, report.severity) == (self.kind, self.severity)
        check_site(report.first, self.first, outcome.first)
        check_site(report.second, self.second, outcome.second)
        memory = outcome.memory
        assert memory.address <= report.address
        assert report.address + report.nbytes <= memory.address + memory.nbytes
        assert report.nbytes > 0
        missing = {words for words in self.advised(outcome) if words not in report.advice}
        assert not missing, report.advice
        for marker, site in (("first", report.first), ("second", report.second)):
            wanted = self.line(marker)
            assert any(frame.startswith(wanted) for frame in site.frames), (wanted, site.frames)


def check_site(site: Site, side: Side, stream: int | None) -> None:
    assert (site.call, site.access, site.stream) == (*side, stream)
    assert site.thread.startswith("thread ")
    assert "_core" in site.location


PROGRAMS: list[Program] = []


def program(kind: str, first: Side, second: Side) -> Callable[[Body], Body]:
    def add(body: Body) -> Body:
        PROGRAMS.append(Program(body.__name__, body, kind, first, second))
        return body

    return add
