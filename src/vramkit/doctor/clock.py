"""The host clock that goes with a driver, and repeated readings on it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vramkit.doctor.facts import Spread

if TYPE_CHECKING:
    from vramkit.driver import Driver

Clock = Callable[[], float]


def clock_of(driver: Driver) -> Clock:
    """Simulated host seconds on the simulated GPU, real ones elsewhere."""
    return time.perf_counter if driver.sim is None else driver.sim.now


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values), len(values))


def rates(nbytes: int, seconds: Sequence[float]) -> Spread:
    return spread([nbytes / value for value in seconds])
