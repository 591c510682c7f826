"""The slab: one exact, pinned range of host memory for the weights of a model."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Self
from weakref import WeakValueDictionary

from vramkit import _core
from vramkit.driver.device import Device
from vramkit.driver.errors import DriverError
from vramkit.driver.host_memory import HostMemory, RegisteredMemory
from vramkit.driver.types import integer, shown
from vramkit.host.available import require
from vramkit.host.pages import HostPages, default_threads
from vramkit.report.units import bytes_text
from vramkit.weights.progress import Progress

MOST = 1 << 47
"""The addresses of a program on x86-64."""
MOST_THREADS = 1024
REGISTERED_AT_ONCE = 512 << 30
"""Drivers from release 580 on keep 16 bytes for each page of a registration in one table, which
the kernel limits to 2 GiB."""


class _SlabRange(_core.HostRange):
    """Keeps the pages mapped while it, or a view of it, is there."""

    def __init__(self, pages: HostPages, nbytes: int) -> None:
        super().__init__(pages.address, nbytes)
        self.pages, self.nbytes = pages, nbytes
        self._held = pages.hold()

    def let_go(self) -> None:
        """Ends this even if the traceback of an error still refers to the range."""
        self._held.release()


_ranges: WeakValueDictionary[int, _SlabRange] = WeakValueDictionary()  # of slabs, by address


def is_in_slab(address: int) -> bool:
    """Whether this is memory of a slab, which goes only as a whole."""
    return any(start <= address < start + each.nbytes for start, each in _ranges.items())


class Slab(HostMemory):
    """Host memory for weights: it begins at a huge-page boundary, every page is there, and the
    card copies from it at the full rate of the link. It takes `nbytes`, rounded up to whole pages.

    Limits are checked before anything is mapped: HostMemoryError names the one that is too small.
    Pages are populated by `threads` threads (default: the CPUs of the process, 16 at most), then
    registered in one call: CUDA does not say that a copy may span two registrations.
    `progress(done, total)` is called in bytes on the way, with done == total after the last step.
    Whatever it raises, KeyboardInterrupt too, ends the work and leaves nothing behind.

    A view keeps the memory mapped. Unlike other HostMemory, close() releases none of them, but
    raises BufferError while one is there: PyTorch uses the memory of a view without holding it.
    """

    _registration: RegisteredMemory | None = None  # until __init__ has got this far

    def __init__(
        self,
        device: Device,
        nbytes: int,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        if threads is None:
            threads = default_threads()
        threads = integer(threads, "threads", 1, MOST_THREADS, besides="None, or ")
        if progress is not None and not callable(progress):
            raise TypeError(
                f"progress is {shown(progress)}; it may be None, or a function of two byte counts"
            )
        self._map(device, nbytes, 0)

        def tell(done: int) -> None:
            if progress is not None and done < self.nbytes:
                progress(done, self.nbytes)

        try:
            self._pages.populate(threads, tell)
            self.pin()
            if progress is not None:
                progress(self.nbytes, self.nbytes)
        except BaseException:
            with suppress(DriverError):
                self.close()
            raise

    @classmethod
    def unpinned(cls, device: Device, nbytes: int, *, released: int = 0) -> Self:
        """Only mapped: memory comes with the first write of each page, and pin() comes last.

        So weights that are in host memory already are moved piece by piece, without a second copy
        of all. `released` is how many bytes the caller frees meanwhile: that much less must be
        available now.
        """
        slab = cls.__new__(cls)
        slab._map(device, nbytes, integer(released, "released"))
        return slab

    @classmethod
    def again(cls, device: Device, address: int, nbytes: int) -> Self | None:
        """The memory of an earlier slab that views still use, unpinned. None: there is no such."""
        known = _ranges.get(address)
        if known is None or known.nbytes != nbytes:
            return None
        slab = cls.__new__(cls)
        slab._use(device, known)
        return slab

    def _map(self, device: Device, nbytes: int, released: int) -> None:
        if not isinstance(device, Device):
            raise TypeError(f"device is {shown(device)}; it may be a Device of vramkit.driver")
        nbytes = integer(nbytes, "nbytes", 1, MOST)
        require(nbytes - released, f"a slab of {bytes_text(nbytes)}")
        self._take(device, HostPages(nbytes), nbytes)

    def _take(self, device: Device, pages: HostPages, nbytes: int) -> None:
        memory = _SlabRange(pages, nbytes)
        self._use(device, memory)
        _ranges[pages.address] = memory

    def _use(self, device: Device, memory: _SlabRange) -> None:
        self._pages = memory.pages
        super().__init__(device, memory.pages.address, memory.nbytes)
        self._range = memory

    @property
    def pinned(self) -> bool:
        """Whether the driver knows the memory, so that copies run at the full rate."""
        return self._registration is not None and not self.closed

    def pin(self) -> None:
        """Register the memory with the driver. If it is pinned already, this does nothing."""
        self._require_open()
        if self._registration is not None:
            return
        # A range of its own: it holds the pages, and is not counted as a view of the slab.
        held = _SlabRange(self._pages, self.nbytes)
        try:
            self._registration = self.device.register(held.view())
        except DriverError as error:
            held.let_go()
            error.add_note(_pinning_failed(self.nbytes))
            raise

    def unpin(self) -> None:
        """Take the memory back from the driver; its content stays. If it is not pinned, this does
        nothing.

        The driver waits for all work in flight, but promises it nowhere: synchronise with the
        streams that copy from it first. If the slab is dropped after this, its views stay valid,
        and the memory goes with the last one.
        """
        self._require_open()
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.close()

    def _release_views(self) -> None:
        if self._range.views:
            raise BufferError(
                f"a view of this {type(self).__name__} is in use; it stays open. Release the view, "
                "or call unpin() and drop the slab: its memory then goes with the last view"
            )

    def _release(self) -> None:
        registration, self._registration = self._registration, None
        try:
            if registration is not None:
                registration.close()
        finally:
            # An interrupted registration still holds the pages, so that they stay mapped.
            self._range = _core.HostRange(self._address, 0)
            self._pages.close()

    def __del__(self) -> None:
        if not self.pinned:
            return  # plain memory, which goes with its last view
        try:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
        finally:
            # An error cannot be reported here, and at exit the driver may be gone already.
            with suppress(Exception):
                self.unpin()


def _pinning_failed(nbytes: int) -> str:
    note = f"This was the pinning of a slab of {bytes_text(nbytes)}. "
    if nbytes >= REGISTERED_AT_ONCE:
        return note + (
            "Drivers from release 580 on register less than 512 GiB in one call: use several slabs."
        )
    return note + "`vramkit doctor` shows how much host memory there is, and its limits."
