"""A tool of our own that listens to NVTX."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capi.support import compiler_of

from .support import MIB

SOURCE = Path(__file__).parent / "programs" / "nvtx_tool.cpp"
NATIVE = Path(__file__).parents[2] / "native"
VARIABLE = "NVTX_INJECTION64_PATH"
LIMIT = 256 * MIB  # of the pool that the tests mostly use


class Range(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("address", ctypes.c_uint64)]


class Tool:
    """Our own tool, as the pool knows it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.tool_fault.restype = ctypes.c_char_p
        self._library.tool_calls.restype = ctypes.c_uint64

    def _ranges(self, which: str) -> dict[int, int]:
        room = (Range * 4096)()
        count = self._library[which](room, len(room))
        assert count <= len(room)
        return {each.address: each.size for each in room[:count]}

    @contextmanager
    def that_runs_python(self) -> Iterator[None]:
        """As long as this lasts, every call of the tool needs the interpreter for a moment."""
        back = ctypes.CFUNCTYPE(None)(lambda: os.listdir("/"))  # lets others run meanwhile
        self._library.tool_asks(back)
        yield
        self._library.tool_asks(None)

    @property
    def heaps(self) -> dict[int, int]:
        return self._ranges("tool_heaps")

    @property
    def regions(self) -> dict[int, int]:
        return self._ranges("tool_regions")

    @property
    def calls(self) -> int:
        count: int = self._library.tool_calls()
        return count

    @property
    def fault(self) -> str:
        text: bytes = self._library.tool_fault()
        return text.decode()


def build(folder: Path) -> Path:
    path = folder / "tool.so"
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{NATIVE}"]
    command = [compiler_of(SOURCE), *flags, str(SOURCE), "-o", str(path)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    return path
