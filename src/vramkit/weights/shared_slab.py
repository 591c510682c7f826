"""A slab that the processes of a node share: one copy of the weights for all of them.

The memory is a file without a name (memfd): it goes with the last process that has it mapped,
however that ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from vramkit.host.pages import HUGE, HostPages
from vramkit.weights.slab import Slab

if TYPE_CHECKING:
    from vramkit.driver import Device


class SharedPages(HostPages):
    """Pages of a file, at the same offsets in every process that maps it."""

    def __init__(self, file: int, nbytes: int) -> None:
        self.nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._file = os.dup(file)
        self._mapping = mmap.mmap(self._file, self.nbytes, flags=mmap.MAP_SHARED)
        first = ctypes.c_char.from_buffer(self._mapping)
        self.address = ctypes.addressof(first)
        del first  # it would keep the mapping open
        if nbytes >= HUGE:
            # A kernel without huge pages for shared memory refuses the advice.
            with suppress(OSError):
                self._mapping.madvise(mmap.MADV_HUGEPAGE)

    def make_private(self) -> None:
        """From now on what is written here is seen by this process alone: a page is copied when it
        is written. The addresses stay. Not while the driver has the memory registered."""
        if self._file < 0:
            return
        flags = mmap.MAP_PRIVATE | _MAP_FIXED
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        made = _mmap(self.address, self.nbytes, protection, flags, self._file, 0)
        if made != self.address:
            code = ctypes.get_errno()
            raise OSError(code, f"mapping the weights as private memory: {os.strerror(code)}")
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def close(self) -> None:
        self._close_file()
        super().close()

    def __del__(self) -> None:
        self._close_file()


_MAP_FIXED = 0x10
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)


class SharedSlab(Slab):
    """Memory of a file that other processes map too."""

    @classmethod
    def of_file(cls, device: Device, file: int, nbytes: int) -> Self:
        """Not pinned. The file may be closed afterwards."""
        slab = cls.__new__(cls)
        slab._take(device, SharedPages(file, nbytes), nbytes)
        return slab

    def make_private(self) -> None:
        """As SharedPages has it; the slab is not pinned."""
        assert not self.pinned and isinstance(self._pages, SharedPages)
        self._pages.make_private()


def make_file(nbytes: int) -> int:
    """A file for a slab, without a name. Memory comes with the first write of each page."""
    file = os.memfd_create("vramkit-weights", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    except BaseException:
        os.close(file)
        raise
    return file


def open_file(pid: int, file: int) -> int:
    """The file of another process of the same user."""
    return os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
