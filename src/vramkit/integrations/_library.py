"""libvramkit.so as frameworks need it: its C functions, by address."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

from vramkit import get_library

if TYPE_CHECKING:
    from vramkit import Pool

OUT_OF_MEMORY = 4  # VRAMKIT_OUT_OF_MEMORY

# What is called from here; frameworks are given addresses and know the signatures themselves.
SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "vramkit_last_error": (ctypes.c_char_p, []),
    "vramkit_last_status": (ctypes.c_int, []),
    "vramkit_torch_use": (ctypes.c_int, [ctypes.c_int, ctypes.c_void_p]),
    "vramkit_torch_is_served": (ctypes.c_int, [ctypes.c_int]),
    "vramkit_torch_failures": (ctypes.c_uint64, [ctypes.c_int]),
    "vramkit_cupy_create": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]),
}


@cache
def library() -> ctypes.CDLL:
    """The library that the extension itself is linked to: one engine, one set of pools."""
    try:
        opened = ctypes.CDLL(get_library())
    except OSError as error:
        raise RuntimeError(
            f"{get_library()} cannot be loaded: {error}; reinstall vramkit"
        ) from None
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(opened, name)
        function.restype, function.argtypes = result, arguments
    return opened


def address(function: str) -> int:
    found = ctypes.cast(getattr(library(), function), ctypes.c_void_p).value
    assert found is not None
    return found


def usable_pool(pool: Pool) -> Pool:
    """Raises TypeError for anything but a Pool: C functions cannot use adaptors or resources."""
    if isinstance(pool, type) or not hasattr(pool, "c_handle"):
        raise TypeError(f"pool is {pool!r}; it must be a vramkit.Pool")
    return pool


def handle(pool: Pool | None) -> int | None:
    """The vramkit_pool* of a pool; None, the NULL of C: the process-wide pools."""
    return None if pool is None else pool.c_handle


def was_short_of_memory() -> bool:
    """Whether the last C call of this thread failed for lack of memory."""
    return bool(library().vramkit_last_status() == OUT_OF_MEMORY)


def last_error() -> str:
    """Why the last C call of this thread failed."""
    words: bytes = library().vramkit_last_error()
    return words.decode(errors="replace")
