"""How many calls for memory the driver gets, counted on the simulated GPU, which sees them all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramkit.driver import Driver

CALLS = frozenset(
    {
        "cuMemAlloc",
        "cuMemFree",
        "cuMemAllocAsync",
        "cuMemAllocFromPoolAsync",
        "cuMemFreeAsync",
        "cuMemPoolTrimTo",
        "cuMemCreate",
        "cuMemRelease",
        "cuMemAddressReserve",
        "cuMemAddressFree",
        "cuMemMap",
        "cuMemUnmap",
        "cuMemSetAccess",
    }
)
"""By which device memory is taken, given back and mapped."""


class MemoryCalls:
    """Of each part of a program that is done inside counted()."""

    def __init__(self, driver: Driver) -> None:
        self._simulator = driver.sim
        self.made: list[int] = []

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A real driver does not tell: nothing is counted then."""
        before = self._now()
        yield
        if self._simulator is not None:
            self.made.append(self._now() - before)

    def _now(self) -> int:
        if self._simulator is None:
            return 0
        counts = self._simulator.call_counts()
        return sum(count for name, count in counts.items() if name.partition("_")[0] in CALLS)
