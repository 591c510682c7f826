"""The plain driver, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.driver.opening import device_of

if TYPE_CHECKING:
    from vramkit.driver import Device


class DirectResource(_core.DirectEngine):
    """cuMemAlloc for every block and cuMemFree for every free, which waits for its stream first.

    Nothing is cached: it holds the least memory, and is the slowest.
    """

    def __init__(self, *, device: Device | int | None = None) -> None:
        super().__init__(device_of(device))
