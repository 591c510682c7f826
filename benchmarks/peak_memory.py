"""The most host memory that this process had since a point in time, by the kernel's own count."""

from contextlib import suppress
from pathlib import Path

KIB = 1 << 10
NOISE = 16 << 20  # the kernel counts in batches, a few pages a thread


class PeakMemory:
    """From when it is made. The kernel's peak is of the whole process, from its start: it is reset
    first, which some sandboxes do not allow."""

    def __init__(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._before = _status("VmRSS")
        self._was_reset = _status("VmHWM") <= self._before + NOISE

    def more(self) -> int | None:
        """Bytes above what there was at first; None: the peak is an older one."""
        return _status("VmHWM") - self._before if self._was_reset else None


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith(f"{field}:"))
