"""An arena for each stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.driver.opening import device_of

if TYPE_CHECKING:
    from vramkit.driver import Device


class Arena(_core.ArenaEngine):
    """One slab of `size` bytes, rounded up to superblocks of 4 MiB; an arena of them per stream.

    Each stream takes blocks from superblocks of its own, under a lock of its own; the per-thread
    default stream counts as one for each thread. When the slab is used up, the host waits for the
    card and collects superblocks that are wholly free; if there are none: OutOfMemoryError.
    """

    def __init__(self, size: int, *, device: Device | int | None = None) -> None:
        super().__init__(device_of(device), size)
