"""Memory that a device owns, and what all memory objects have in common."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from vramkit import _core
from vramkit.driver.errors import ClosedError
from vramkit.driver.types import Kind, Owner, Span, within

if TYPE_CHECKING:
    from vramkit.driver.device import Device


class Resource(Owner, ABC):
    """Something of the driver that must be released once, by close() or a with statement.

    If dropped without that, it is released with a ResourceWarning. After close() every use raises
    ClosedError; a reset of the simulated GPU closes everything made before it. In a forked child
    everything is closed: nothing is released there, and there is no warning.
    """

    _released = True  # until __init__ has got what it asked for

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self._epoch = device.epoch
        self._released = False

    @abstractmethod
    def _release(self) -> None:
        """Releases the resource; called at most once."""

    @property
    def closed(self) -> bool:
        return self._released or self._epoch != self.device.epoch or self.device.forked

    def _require_open(self) -> None:
        if self._released:
            raise ClosedError(f"this {type(self).__name__} is closed")
        if self.device.forked:
            raise ClosedError(
                f"this {type(self).__name__} belongs to the parent process: a forked child cannot "
                'use it; start children by "spawn"'
            )
        if self._epoch != self.device.epoch:
            raise ClosedError(
                f"this {type(self).__name__} is gone: the simulated GPU was reset after it was made"
            )

    def close(self) -> None:
        """Release it. A second time does nothing."""
        if self.closed:
            return
        self._released = True
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self.closed:
            return
        try:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
        finally:
            # An error cannot be reported here, and at exit the driver may be gone already.
            try:
                self.close()
            except Exception:
                self._released = True


class Memory(Resource):
    """A range of addresses for copies and kernels."""

    kind: ClassVar[Kind] = "device"

    def __init__(self, device: Device, address: int, nbytes: int) -> None:
        super().__init__(device, nbytes)
        self._address = address

    @property
    def address(self) -> int:
        self._require_open()
        return self._address

    def at(self, offset: int = 0, nbytes: int | None = None) -> Span:
        """A part of it; all from `offset` on if nbytes is not given."""
        offset, nbytes = within(self.nbytes, offset, nbytes)
        return Span(self.address + offset, nbytes, self.kind)

    def __repr__(self) -> str:
        where = "closed" if self.closed else f"at {self._address:#x}"
        return f"<{type(self).__name__} of {self.nbytes} bytes {where}>"


class DeviceMemory(Memory):
    """Memory on the card. Closing it waits for work in flight, as the driver's free does."""

    def __init__(self, device: Device, nbytes: int) -> None:
        super().__init__(device, _core.memory_alloc(device, nbytes), nbytes)

    def _release(self) -> None:
        _core.memory_free(self.device, self._address)
