"""Host memory that the card can reach: pinned by the driver, or the caller's own, registered."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, ClassVar, SupportsIndex

from vramkit import _core
from vramkit.driver.errors import DriverError
from vramkit.driver.memory import Memory
from vramkit.driver.operands import is_buffer, is_number
from vramkit.driver.types import Kind, SupportsBuffer, integer, shown, size, truth, within

if TYPE_CHECKING:
    from vramkit.driver.device import Device


class HostMemory(Memory):
    """Memory that both the host and the card read and write.

    read(), write() and view() tell the simulated GPU's checker what the host accesses and when; it
    cannot see later accesses through a view.
    """

    kind: ClassVar[Kind] = "host"

    def __init__(self, device: Device, address: int, nbytes: int) -> None:
        super().__init__(device, address, nbytes)
        self._range = _core.HostRange(address, nbytes)
        self._views: list[weakref.ref[memoryview]] = []

    def read(self, offset: int = 0, nbytes: int | None = None) -> bytes:
        """A copy of the bytes; all from `offset` on if nbytes is not given."""
        offset, nbytes = self._touch(offset, nbytes, write=False)
        with self._range.view() as view:
            return bytes(view[offset : offset + nbytes])

    def write(self, data: SupportsBuffer, offset: int = 0) -> None:
        """Write bytes at an offset."""
        if not is_buffer(data):
            raise TypeError(f"data is {shown(data)}; it may be a buffer object, such as bytes")
        with memoryview(data).cast("B") as source:
            offset, nbytes = self._touch(offset, len(source), write=True)
            with self._range.view() as view:
                view[offset : offset + nbytes] = source

    def view(
        self, offset: int = 0, nbytes: int | None = None, *, readonly: bool = False
    ) -> memoryview:
        """The bytes themselves, without a copy. close() releases the view.

        For the checker this is one write (with readonly, one read) of all bytes at this moment.
        """
        offset, nbytes = self._touch(offset, nbytes, write=not truth(readonly, "readonly"))
        whole = self._range.view()
        view = whole[offset : offset + nbytes]
        whole.release()
        if readonly:
            writable, view = view, view.toreadonly()
            writable.release()
        self._views = [held for held in self._views if held() is not None]
        self._views.append(weakref.ref(view))
        return view

    def _touch(
        self, offset: SupportsIndex, nbytes: SupportsIndex | None, *, write: bool
    ) -> tuple[int, int]:
        start, length = within(self.nbytes, offset, nbytes)
        address = self.address + start
        if (sim := self.device.driver.sim) is not None:
            sim.host_access(address, length, write)
        return start, length

    def close(self) -> None:
        """Free it and release the views. Raises BufferError while a NumPy array or a slice still
        uses one of them: it would refer to freed memory."""
        if not self.closed:
            self._release_views()
        super().close()

    def _release_views(self) -> None:
        for held in self._views:
            if (view := held()) is not None:
                view.release()
        if self._range.views:
            raise BufferError(f"a view of this {type(self).__name__} is in use; it stays open")


class PinnedMemory(HostMemory):
    """Pinned host memory from the driver. Closing it waits for work in flight."""

    def __init__(self, device: Device, nbytes: int) -> None:
        super().__init__(device, _core.memory_alloc_pinned(device, nbytes), nbytes)

    def _release(self) -> None:
        _core.memory_free_pinned(self.device, self._address)


class RegisteredMemory(HostMemory):
    """The caller's memory, pinned in place until this is closed; closing waits for work in flight.
    A buffer object is kept alive meanwhile; memory given by address must be kept by the caller.
    """

    def __init__(
        self, device: Device, buffer: SupportsBuffer | int, nbytes: int | None = None
    ) -> None:
        self._held: _core.Buffer | None = None
        if is_number(buffer):
            if nbytes is None:
                raise TypeError("register() needs nbytes with an address")
            address, length = integer(buffer, "buffer"), size(nbytes)
        else:
            if not is_buffer(buffer):
                raise TypeError(
                    f"buffer is {shown(buffer)}; it may be a writable buffer object, or an address "
                    "with nbytes"
                )
            self._held = _core.Buffer(buffer, True)
            address = self._held.address
            _, length = within(self._held.nbytes, 0, nbytes)
        _core.memory_register(device, address, length)
        super().__init__(device, address, length)

    def _release(self) -> None:
        try:
            _core.memory_unregister(self.device, self._address)
        except DriverError:
            self._let_go()
            raise
        except BaseException:
            # A signal handler's: the call still waits, and the card may use the memory meanwhile.
            if self._held is not None:
                _held_for_good.append(self._held)
            raise
        self._let_go()

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.release()


_held_for_good: list[_core.Buffer] = []
"""Memory whose unregistering was interrupted."""
