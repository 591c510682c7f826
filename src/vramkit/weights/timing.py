"""Where the time of a pass goes, by events on the streams that compute: three a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from vramkit.driver.errors import DriverError

if TYPE_CHECKING:
    from vramkit.driver import Device, Event
    from vramkit.driver.types import SupportsCudaStream


class GroupTime(NamedTuple):
    """Seconds from the start of the pass until a stream needed a group, those that it waited for
    it, and those until the work on it was over."""

    group: int
    asked: float
    waited: float
    used: float


class HostBlock(NamedTuple):
    """The host was blocked for weights, by the clock of host_clock()."""

    name: str
    start: float
    end: float


class MeasuredPass(NamedTuple):
    seconds: float
    groups: tuple[GroupTime, ...]
    blocked: tuple[HostBlock, ...] = ()
    misses: int = 0

    @property
    def waited(self) -> float:
        return sum(group.waited for group in self.groups)

    @property
    def host_blocked(self) -> float:
        return sum(each.end - each.start for each in self.blocked)


def host_clock(device: Device) -> Callable[[], float]:
    """Seconds: those of the simulated GPU, or of a card's host."""
    sim = device.driver.sim
    return time.perf_counter if sim is None else sim.now


class _Events(NamedTuple):
    asked: Event
    ready: Event
    done: Event


class Timing:
    """Times of the last whole pass. Events are made in the first pass and used again.

    A pass in which an event could not be recorded, or a group not be used, is not measured: nothing
    fails because of a measurement.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._events: list[_Events] = []  # by step of the pass
        self._groups: list[int] = []  # of the pass under way
        self._last: list[int] = []  # of the one before it, while that can be read
        self._failed = False  # the pass under way has no times
        self._clock = host_clock(device)
        self._blocked: list[HostBlock] = []  # in the pass under way
        self._misses = 0  # so far, when it began
        self._last_host: tuple[tuple[HostBlock, ...], int] = (), 0

    def begin_pass(self, misses: int = 0) -> None:
        """`misses` are those so far."""
        if self._groups:
            self._last, self._groups = [] if self._failed else self._groups, []
            self._last_host = tuple(self._blocked), misses - self._misses
        self._blocked, self._misses = [], misses
        self._failed = False

    def fail(self) -> None:
        """A step of the pass under way was not done."""
        self._failed = True

    def asked(self, group: int, stream: SupportsCudaStream) -> int:
        """The stream is about to wait. Returns the number of the step."""
        step = len(self._groups)
        if step == 0:
            self._last = []  # its events are recorded again from here on
        self._groups.append(group)
        with self._recording():
            while step >= len(self._events):
                self._events.append(_Events(*(self._device.event() for _ in range(3))))
            self._events[step].asked.record(stream)
        return step

    def ready(self, step: int, stream: SupportsCudaStream) -> None:
        if step < len(self._events):
            with self._recording():
                self._events[step].ready.record(stream)

    def done(self, step: int, stream: SupportsCudaStream) -> None:
        if step < min(len(self._groups), len(self._events)):
            with self._recording():
                self._events[step].done.record(stream)

    @contextmanager
    def blocking(self, name: str) -> Iterator[None]:
        """The host is blocked meanwhile. Counts from the first step of a pass on."""
        start = self._clock()
        try:
            yield
        finally:
            if self._groups:
                self._blocked.append(HostBlock(name, start, self._clock()))

    @contextmanager
    def _recording(self) -> Iterator[None]:
        try:
            yield
        except DriverError:
            self._failed = True

    def last_pass(self) -> MeasuredPass | None:
        """None: no pass has ended since the last one began, or that was not measured. Waits for
        the work of the pass."""
        if not self._last:
            return None
        events = self._events[: len(self._last)]
        start = events[0].asked
        events[-1].done.synchronize()
        times = tuple(
            GroupTime(
                group,
                each.asked.elapsed_since(start),
                each.ready.elapsed_since(each.asked),
                each.done.elapsed_since(each.ready),
            )
            for group, each in zip(self._last, events, strict=True)
        )
        return MeasuredPass(events[-1].done.elapsed_since(start), times, *self._last_host)

    @property
    def start(self) -> Event | None:
        """Where the last pass, or the one under way, has begun; None before the first."""
        return self._events[0].asked if self._events else None

    def start_on_host(self) -> float:
        """When the last pass has begun, by the host's clock. Of the card's clock and the host's
        nothing is known but what an event that has just passed says; a card is some microseconds
        late with it."""
        with self._device.stream() as stream, self._device.event() as passed:
            passed.record(stream)
            passed.synchronize()
            return self._clock() - passed.elapsed_since(self._events[0].asked)

    def close(self) -> None:
        for each in self._events:
            for event in each:
                with suppress(DriverError):
                    event.close()
        self._events.clear()
