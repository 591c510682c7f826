"""What the kernel says about the mappings of this process."""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path
from typing import NamedTuple

_mincore = ctypes.CDLL(None).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class Mapping(NamedTuple):
    """An entry of /proc/self/smaps."""

    start: int
    end: int
    flags: set[str]


def mapped(address: int, nbytes: int) -> list[Mapping]:
    """The mappings that overlap a range."""
    found: list[Mapping] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            start, end = (int(bound, 16) for bound in bounds.groups())
            found.append(Mapping(start, end, set()))
        elif line.startswith("VmFlags:"):
            found[-1].flags.update(line.split()[1:])
    return [entry for entry in found if entry.start < address + nbytes and entry.end > address]


def is_mapped(address: int) -> bool:
    """Whether a page is mapped. Allocates nothing large, which might be mapped just there."""
    return _mincore(address, mmap.PAGESIZE, ctypes.byref(ctypes.c_ubyte())) == 0


def resident(address: int, nbytes: int) -> int:
    """How many bytes of a mapped range have memory behind them."""
    pages = (ctypes.c_ubyte * (nbytes // mmap.PAGESIZE))()
    if _mincore(address, nbytes, pages) != 0:
        raise OSError("mincore: the range is not mapped")
    return sum(page & 1 for page in pages) * mmap.PAGESIZE
