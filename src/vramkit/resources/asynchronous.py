"""The driver's own pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.driver.opening import device_of
from vramkit.driver.types import integer, truth

if TYPE_CHECKING:
    from vramkit.driver import Device


class AsyncResource(_core.DriverPoolEngine):
    """cuMemAllocAsync and cuMemFreeAsync: a pool inside the driver, in stream order.

    It has a pool of its own, which keeps all its memory until close(). With shared=True it uses the
    device's default pool, which other libraries of the process use too.

    release_threshold: unused bytes that the driver keeps at a synchronisation, when it may give
    memory back. None: all of them; in a shared pool, the value that is set there. In a shared pool
    the change affects all its users, and close() restores the old value.
    """

    def __init__(
        self,
        *,
        device: Device | int | None = None,
        shared: bool = False,
        release_threshold: int | None = None,
    ) -> None:
        shared = truth(shared, "shared")
        if release_threshold is not None:
            release_threshold = integer(release_threshold, "release_threshold", besides="None, or ")
        super().__init__(device_of(device), shared, release_threshold)
