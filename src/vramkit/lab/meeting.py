"""What the threads of a player in Python share: where they wait for one another, the mutex of the
program, and the meter of memory. native/lab/meeting.h is the same in C++.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramkit.lab.clock import Clock
    from vramkit.lab.program import Program


class Stopped(Exception):
    """Another thread has failed."""


_NEVER = (0, 0.0)


class Meeting:
    """Where the threads of a play wait for one another, and take over each other's time."""

    def __init__(self, program: Program, clock: Clock, begin: Callable[[float], None]) -> None:
        self._clock = clock
        self._begin = begin
        self._threads = program.thread_count
        self._changed = threading.Condition()
        self.stopped = False
        self._turn = 0
        self._turns: dict[int, threading.Lock] = {}
        """Of those who wait for theirs, by step: only the next one is to wake up."""
        self._told: dict[int, tuple[int, float]] = {}
        self._arrived = 0
        self._latest = clock.now()  # no thread begins before the one that starts them
        self._round = 0
        self._section = 0
        self.walls = [0.0] * len(program.sections)
        self.moment = 0.0
        """When the threads met last."""

    def stop(self) -> None:
        with self._changed:
            self.stopped = True
            self._changed.notify_all()
            for turn in self._turns.values():
                turn.release()
            self._turns.clear()

    def meet(self, section: int) -> None:
        """All threads wait for the last one. What follows counts for the section."""
        with self._changed:
            self._latest = max(self._latest, self._clock.now())
            self._arrived += 1
            if self._arrived < self._threads:
                this = self._round
                self._until(lambda: self._round != this)
            else:
                if self._round > 0:
                    self.walls[self._section] += self._latest - self.moment
                else:
                    self._begin(self._latest)
                self.moment, self._section = self._latest, section
                self._arrived = 0
                self._round += 1
                self._changed.notify_all()
            self._clock.catch_up(self.moment)

    def wait_for_turn(self, step: int) -> None:
        with self._changed:
            turn = None
            if self._turn != step and not self.stopped:
                turn = self._turns[step] = threading.Lock()
                turn.acquire()
        if turn is not None:
            turn.acquire()
        if self.stopped:
            raise Stopped
        self._clock.catch_up(self._latest)

    def give_turn(self, step: int) -> None:
        """To the thread whose step comes next."""
        with self._changed:
            self._latest = max(self._latest, self._clock.now())
            self._turn = step
            if turn := self._turns.pop(step, None):
                turn.release()

    def wait_for(self, slot: int, count: int) -> None:
        """Until the block or event was told of so often."""
        with self._changed:
            self._until(lambda: self._told.get(slot, _NEVER)[0] >= count)
            self._clock.catch_up(self._told.get(slot, _NEVER)[1])

    def tell(self, slot: int) -> None:
        with self._changed:
            count, moment = self._told.get(slot, _NEVER)
            self._told[slot] = count + 1, max(moment, self._clock.now())
            self._changed.notify_all()

    def _until(self, reached: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self.stopped or reached())
        if self.stopped:
            raise Stopped


class Mutex:
    """The mutex of a program; who gets it takes over the time of who had it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left = 0.0

    def lock(self) -> None:
        self._lock.acquire()
        self._clock.catch_up(self._left)

    def unlock(self) -> None:
        self._left = self._clock.now()
        self._lock.release()


class Meter:
    """Bytes in use and held, over time."""

    def __init__(self, held: Callable[[], int | None], every: int = 1) -> None:
        """What is held is read with each `every`-th change."""
        self._held = held
        self._every = every
        self._changes = 0
        # A block that the garbage collector frees is noted by whoever has the lock just then.
        self._lock = threading.RLock()
        self._in_use = 0
        self.peak_in_use = 0
        self._peak = 0
        self._area = 0.0
        self._begun = self._at = 0.0
        self._last: int | None = None

    def begin(self, now: float) -> None:
        with self._lock:
            self._begun = self._at = now
            self._read(now)

    def note(self, now: float, change: int) -> None:
        with self._lock:
            self._in_use += change
            self.peak_in_use = max(self.peak_in_use, self._in_use)
            self._changes += 1
            if self._changes % self._every == 0:
                self._read(now)

    def finish(self, now: float) -> tuple[int | None, float | None, int | None]:
        """Peak, average and end."""
        self._read(now)
        if self._last is None:
            return None, None, None
        passed = self._at - self._begun
        return self._peak, self._area / passed if passed else float(self._last), self._last

    def _read(self, now: float) -> None:
        if self._last is not None and now > self._at:
            self._area += self._last * (now - self._at)
        self._at = max(self._at, now)
        self._last = self._held()
        if self._last is not None:
            self._peak = max(self._peak, self._last)
