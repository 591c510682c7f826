"""What programs that are not ours use of a card, by NVML where there is one."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

logger = logging.getLogger(__name__)


class Nvml:
    """Opened once; without NVIDIA's library every question is answered by None."""

    def __init__(self) -> None:
        self._module: Any = None
        try:
            import pynvml  # type: ignore[import-untyped]

            pynvml.nvmlInit()
            self._module = pynvml
        except Exception as error:
            # NVML has an error class of its own for each reason; none of them matters here.
            logger.info("no NVML: %s; budgets are the cards' totals less the reserve", error)

    @property
    def there(self) -> bool:
        return self._module is not None

    def count(self) -> int:
        """Cards of this machine."""
        if self._module is None:
            return 0
        try:
            return int(self._module.nvmlDeviceGetCount())
        except Exception as error:
            logger.debug("NVML does not count the cards: %s", error)
            return 0

    def total(self, uuid: bytes) -> int | None:
        """Memory of a card; None: there is no such card."""
        if self._module is None:
            return None
        try:
            handle = self._module.nvmlDeviceGetHandleByUUID(uuid_text(uuid))
        except Exception as error:
            logger.debug("NVML does not know %s: %s", uuid_text(uuid), error)
            return None
        # Newer drivers say what they keep for themselves, which programs cannot have.
        for version in (self._module.nvmlMemory_v2, None):
            try:
                found = self._module.nvmlDeviceGetMemoryInfo(handle, version)
            except Exception as error:
                logger.debug("NVML does not know the memory of %s: %s", uuid_text(uuid), error)
                continue
            return int(found.total - getattr(found, "reserved", 0))
        return None

    def used_by_others(self, uuid: bytes, ours: Collection[int]) -> int | None:
        """Bytes of processes that are not in `ours`; processes of other containers are unknown."""
        if self._module is None:
            return None
        try:
            handle = self._module.nvmlDeviceGetHandleByUUID(uuid_text(uuid))
            processes = self._module.nvmlDeviceGetComputeRunningProcesses(handle)
            return sum(
                process.usedGpuMemory or 0 for process in processes if process.pid not in ours
            )
        except Exception as error:
            logger.debug("NVML does not know the use of %s: %s", uuid_text(uuid), error)
            return None


def uuid_text(uuid: bytes) -> str:
    """As nvidia-smi shows it."""
    text = uuid.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
