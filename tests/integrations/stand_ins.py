"""What the frameworks show of themselves to an integration, and a library and a pool beside it.

For what an integration does by itself; the frameworks are tested on a card.
"""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

STREAM = 0x5EA


def add_module(patch: pytest.MonkeyPatch, name: str, **contents: object) -> Any:
    """A module that import finds, as an attribute of its parent too."""
    module = ModuleType(name)
    for key, value in contents.items():
        setattr(module, key, value)
    patch.setitem(sys.modules, name, module)
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        patch.setattr(sys.modules[parent], last, module, raising=False)
    return module


class Pool:
    """One on a real card, as far as an integration looks."""

    c_handle = 0xC0FFEE

    def __init__(self, ordinal: int = 0) -> None:
        self.device = SimpleNamespace(ordinal=ordinal, driver=SimpleNamespace(sim=None))
        self.calls: list[tuple[object, ...]] = []

    def malloc(self, size: int, stream: object) -> int:
        self.calls.append(("malloc", size, stream))
        return 0x1000

    def free(self, address: int, size: int, stream: object) -> None:
        self.calls.append(("free", address, size, stream))

    def reset_peaks(self) -> None:
        self.calls.append(("reset_peaks",))


class Library:
    """libvramkit.so: functions that note how they are called, and an error to tell."""

    NOTED = ctypes.CFUNCTYPE(ctypes.c_void_p)

    def __init__(self, status: int = 0, error: str = "") -> None:
        self.status, self.error = status, error
        self.calls: list[tuple[object, ...]] = []
        self.functions: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        """Functions whose address is asked for: each has one of its own."""
        if not name.startswith("vramkit_"):
            raise AttributeError(name)
        return self.functions.setdefault(name, self.NOTED(lambda: None))

    def address(self, name: str) -> int | None:
        return ctypes.cast(getattr(self, name), ctypes.c_void_p).value

    def vramkit_last_error(self) -> bytes:
        return self.error.encode()

    def vramkit_last_status(self) -> int:
        return self.status

    def vramkit_torch_use(self, device: int, pool: int | None) -> int:
        self.calls.append(("torch_use", device, pool))
        return self.status

    def vramkit_torch_is_served(self, device: int) -> int:
        return 1

    def vramkit_cupy_create(self, pool: int | None, current_stream: int) -> int | None:
        self.calls.append(("cupy_create", pool, current_stream))
        return None if self.status else 0xABC


def capsule(name: bytes, address: int = STREAM) -> object:
    """As Cython keeps its C functions; the name must stay alive as long as the capsule."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    return new(address, name, None)
