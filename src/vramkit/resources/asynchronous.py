"""The driver's own pool."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.driver.opening import device_of

if TYPE_CHECKING:
    from vramkit.driver import Device


class AsyncResource(_core.DriverPoolEngine):
    """cuMemAllocAsync and cuMemFreeAsync: a pool inside the driver, in stream order.

    It has a pool of its own, which keeps all it got until close(). With shared=True it is the
    device's default pool, which other libraries of the process use too.

    release_threshold: unused bytes that the driver keeps when it may give memory back, at every
    synchronisation. None: all of them; in a shared pool, whatever is set there. In a shared pool it
    changes for everybody, and close() puts the former value back.
    """

    def __init__(
        self,
        *,
        device: Device | int | None = None,
        shared: bool = False,
        release_threshold: int | None = None,
    ) -> None:
        if not isinstance(shared, bool):
            raise TypeError(f"shared is {shared!r}; it may be True or False")
        if release_threshold is not None:
            release_threshold = _threshold(release_threshold)
        super().__init__(device_of(device), shared, release_threshold)


def _threshold(given: int) -> int:
    words = f"release_threshold is {given!r}; it may be None, or 0 to {2**64 - 1}"
    try:
        threshold = index(given)
    except TypeError:
        raise TypeError(words) from None
    if not 0 <= threshold < 1 << 64:
        raise ValueError(words)
    return threshold
