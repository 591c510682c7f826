"""The built-in kernels, loaded from their PTX text and launched through the driver API."""

from __future__ import annotations

import ctypes
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Any

from .support import SPIN_NANOSECONDS, name, ok

PARAMETERS = {
    "vk_spin": (ctypes.c_uint64,),
    "vk_fill": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32),
    "vk_add": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64),
    "vk_sweep": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32),
    "vk_checksum": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64),
    "vk_hash128": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64),
}


def image() -> bytes:
    """The PTX text with the terminating zero that cuModuleLoadData reads up to.

    A machine that only runs this suite on a real card needs no built package: there the text
    comes from the source tree.
    """
    try:
        folder: Traversable = resources.files("vramkit.driver")
    except ImportError:
        folder = Path(__file__).parents[2] / "src" / "vramkit" / "driver"
    return folder.joinpath("kernels.ptx").read_bytes() + b"\0"


class Kernels:
    """One loaded module. Loading runs each entry once: later launches find it resident."""

    def __init__(self, driver: ModuleType) -> None:
        self._driver = driver
        self.module = ok(driver.cuModuleLoadData(image()))
        self.functions = {
            entry: ok(driver.cuModuleGetFunction(self.module, entry.encode()))
            for entry in PARAMETERS
        }
        for entry in PARAMETERS:
            self.run(entry, *(0 for _ in PARAMETERS[entry]), stream=0)
        ok(driver.cuStreamSynchronize(0))

    def unload(self) -> None:
        ok(self._driver.cuModuleUnload(self.module))

    def launch(
        self,
        entry: str,
        *values: int,
        stream: Any,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (32, 1, 1),
        shared_bytes: int = 0,
    ) -> Any:
        """The raw result of cuLaunchKernel."""
        return self._driver.cuLaunchKernel(
            self.functions[entry],
            *grid,
            *block,
            shared_bytes,
            stream,
            (values, PARAMETERS[entry]),
            0,
        )

    def run(self, entry: str, *values: int, stream: Any, blocks: int = 1) -> None:
        result = self.launch(entry, *values, stream=stream, grid=(blocks, 1, 1))
        assert int(result[0]) == 0, f"{entry} did not launch: {name(result)}"

    def spin(self, stream: Any, nanoseconds: int = SPIN_NANOSECONDS) -> None:
        self.run("vk_spin", nanoseconds, stream=stream)
