"""What a program under `vramkit run` may say by itself: "I am idle now", "I need the card now"."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

logger = logging.getLogger(__name__)

LIBRARY = "libvramkit_share.so"
RTLD_NOLOAD = 4


@cache
def _loaded() -> ctypes.CDLL | None:
    """The library under the program, if this process runs with it; it is never loaded from here."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            lines = (line.rstrip("\n").split(maxsplit=5) for line in maps)
            path = next((row[5] for row in lines if len(row) == 6 and LIBRARY in row[5]), None)
        if path is None:
            return None
        library = ctypes.CDLL(path, mode=RTLD_NOLOAD)
        library.vramkitShareIdle.restype = ctypes.c_int
        library.vramkitShareLease.argtypes = [ctypes.c_int]
        library.vramkitShareLease.restype = ctypes.c_int
    except (OSError, AttributeError) as error:
        logger.debug("%s is not of use: %s", LIBRARY, error)
        return None
    return library


def idle() -> bool:
    """Says that this program has nothing to do on the card now: others may have it at once.

    False: nobody was told, since this program does not run under `vramkit run`, has not used the
    card yet, is within a lease, or its daemon is gone.
    """
    library = _loaded()
    if library is None:
        logger.debug("idle() without vramkit run: nobody to tell")
        return False
    return bool(library.vramkitShareIdle())


@contextmanager
def lease() -> Iterator[bool]:
    """Needs the card for this block: the program is not taken for idle before its end. A turn that
    is over ends all the same.

    Gives whether a daemon knows of the program. In one that does not run under `vramkit run` it
    does nothing.
    """
    library = _loaded()
    if library is None:
        logger.debug("lease() without vramkit run: nobody to ask")
        yield False
        return
    known = bool(library.vramkitShareLease(1))
    try:
        yield known
    finally:
        library.vramkitShareLease(0)
