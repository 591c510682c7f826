"""A pool whose size must be known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.driver.opening import device_of

if TYPE_CHECKING:
    from vramkit.driver import Device


class FixedPool(_core.FixedPoolEngine):
    """One slab of `size` bytes, best fit with joined neighbours, one lock.

    A stream reuses what it freed at once, and what another stream freed after a wait on the GPU for
    that stream's last free. When the slab is full: OutOfMemoryError.
    """

    def __init__(self, size: int, *, device: Device | int | None = None) -> None:
        super().__init__(device_of(device), size)
