"""The page of counters by which a client passes memory on, without the daemon in between."""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass

from vramkit.share.protocol import CARDS, CREDIT_PAGE_BYTES

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass
class CreditPage:
    """Made by the daemon, which only reads it; the client writes it, its successor reads it.

    Sealed against resizing: nobody can take the memory from under a reader.
    """

    writable: int
    readable: int
    _map: mmap.mmap
    _counters: memoryview

    @classmethod
    def make(cls) -> CreditPage:
        """Raises OSError."""
        writable = os.memfd_create("vramkit-credits", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(writable, CREDIT_PAGE_BYTES)
            fcntl.fcntl(writable, fcntl.F_ADD_SEALS, SEALS)
            readable = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(writable)
            raise
        mapped = mmap.mmap(readable, CREDIT_PAGE_BYTES, prot=mmap.PROT_READ)
        # Native integers are read by one load, as the client's atomic stores need.
        return cls(writable, readable, mapped, memoryview(mapped).cast("Q")[:CARDS])

    def given(self, card: int) -> int:
        return int(self._counters[card])

    def sent(self) -> None:
        """The client has its descriptor; ours for writing is no longer needed."""
        if self.writable >= 0:
            os.close(self.writable)
            self.writable = -1

    def close(self) -> None:
        self.sent()
        self._counters.release()
        self._map.close()
        os.close(self.readable)
