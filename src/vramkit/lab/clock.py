"""The clock that a driver's work is timed by: the simulated GPU's own, or the host's steady one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from vramkit import _core

if TYPE_CHECKING:
    from vramkit.driver import Driver


class Clock(Protocol):
    def now(self) -> float:
        """Nanoseconds. On the virtual clock each thread has its own time."""
        ...

    def catch_up(self, moment: float) -> None:
        """The thread has waited for another one until `moment`. Real time has passed by itself."""
        ...


class SteadyClock:
    def now(self) -> float:
        return float(time.perf_counter_ns())

    def catch_up(self, moment: float) -> None:
        pass


class SimulatedClock:
    """Virtual or wall, as the simulated GPU is set."""

    def __init__(self, driver: Driver) -> None:
        self._controls = _core.Controls(driver.session)
        self.now = self._controls.now

    def catch_up(self, moment: float) -> None:
        behind = moment - self.now()
        if behind > 0:
            self._controls.advance(behind)


def clock_of(driver: Driver) -> Clock:
    return SteadyClock() if driver.sim is None else SimulatedClock(driver)
