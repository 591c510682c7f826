"""What the daemon takes from NVML, with a library that is played."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vramkit.share.daemon.nvml import Nvml

from .client import CARD, GIB


class Library:
    """NVML on a machine with the card CARD. `older`: it does not know what the driver keeps."""

    nvmlMemory_v2 = 2

    def __init__(self, older: bool) -> None:
        self.older = older

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f":
            raise RuntimeError("not found")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> SimpleNamespace:
        if version is None:
            return SimpleNamespace(total=24 * GIB)
        if self.older:
            raise RuntimeError("function not found")
        return SimpleNamespace(total=24 * GIB, reserved=GIB)


@pytest.mark.parametrize(("older", "total"), [(False, 23 * GIB), (True, 24 * GIB)])
def test_memory_of_a_card_is_without_what_the_driver_keeps(older: bool, total: int) -> None:
    nvml = Nvml()
    nvml._module = None
    assert (nvml.count(), nvml.total(CARD)) == (0, None)
    nvml._module = Library(older)
    assert (nvml.count(), nvml.total(CARD)) == (1, total)
    assert nvml.total(bytes(16)) is None
