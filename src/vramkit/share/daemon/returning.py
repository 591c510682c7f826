"""After a restart: which programs are awaited before anybody is given memory, and for how long.

No clock: told of the time. The server asks again at `wake_at`, and when one has come back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

# Programs look for a daemon ten times a second.
RETURN_SECONDS = 3.0
# From the hello of the last of them to what it holds.
DEVICE_SECONDS = 0.3

Process = tuple[int, int]
"""Its number, and its start in clock ticks, which tells it from a later one."""


@dataclass
class Returning:
    awaited: set[Process] = field(default_factory=set)
    until: float = -math.inf
    """They are awaited up to this time."""
    named_by: float = -math.inf
    """By then the last one that came back has said what it holds."""

    @classmethod
    def of(cls, processes: Iterable[Process], now: float) -> Returning:
        awaited = set(processes)
        return cls(awaited, now + RETURN_SECONDS if awaited else now)

    def came_back(self, process: Process, now: float) -> None:
        self.awaited.discard(process)
        self.named_by = now + DEVICE_SECONDS

    def is_over(self, now: float, is_there: Callable[[Process], bool]) -> bool:
        """Whether nobody is awaited any more. `is_there`: a process has not ended."""
        if now >= self.until:
            return True
        self.awaited = {each for each in self.awaited if is_there(each)}
        return not self.awaited and now >= self.named_by

    @property
    def wake_at(self) -> float:
        """When it is over, unless somebody comes or ends before."""
        return self.until if self.awaited else min(self.until, self.named_by)


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None: there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may have anything in it.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_there(process: Process) -> bool:
    return start_ticks(process[0]) == process[1]
