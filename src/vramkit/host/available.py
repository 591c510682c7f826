"""How much more host memory this process can get, and by which limit."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

from vramkit.host.limits import (
    ROOT,
    memory_groups,
    read_integer,
    read_meminfo,
    read_table,
    resource_limit,
)
from vramkit.report.units import bytes_text

NO_OVERCOMMIT = 2  # vm.overcommit_memory

_LESS = "or use a smaller or quantised model"


class HostMemoryError(MemoryError):
    """The host does not have enough memory, or a limit does not allow it."""


class Bound(NamedTuple):
    """One limit: how many bytes it leaves, what it is, what to do where that is too little."""

    available: int
    what: str
    fix: str


def bounds(root: Path = ROOT) -> list[Bound]:
    """Every limit on new memory of this process; none for what cannot be read.

    `ulimit -l` is not among them: NVIDIA's driver pins pages itself and does not count them as
    locked memory.
    """
    memory = read_meminfo(root)
    found = []
    if "MemAvailable" in memory:
        what = f"that is the available RAM (of {bytes_text(memory.get('MemTotal', 0))})"
        fix = f"End other programs, add RAM, {_LESS}."
        found.append(Bound(memory["MemAvailable"], what, fix))
    for group in memory_groups(root):
        what = f"{group.source} allows {_rest(group.limit, group.used)}"
        fix = f"Raise the container's memory limit (--memory), {_LESS}."
        found.append(Bound(group.limit - group.used, what, fix))
    if read_integer(root / "proc/sys/vm/overcommit_memory") == NO_OVERCOMMIT:
        limit, used = memory.get("CommitLimit", 0), memory.get("Committed_AS", 0)
        what = f"the kernel does not overcommit and allows {_rest(limit, used)}"
        fix = f"As root: `sysctl vm.overcommit_memory=0`, {_LESS}."
        found.append(Bound(limit - used, what, fix))
    status = read_table(root / "proc/self/status")
    for which, letter, name in (
        (resource.RLIMIT_AS, "v", "VmSize"),
        (resource.RLIMIT_DATA, "d", "VmData"),
    ):
        if (allowed := resource_limit(which)) is not None:
            used = status.get(name, 0)
            what = f"`ulimit -{letter}` allows {_rest(allowed, used)}"
            found.append(Bound(allowed - used, what, f"`ulimit -{letter} unlimited`."))
    return found


def _rest(limit: int, used: int) -> str:
    return f"{bytes_text(limit)}, of which {bytes_text(used)} are in use"


def require(nbytes: int, what: str, *, root: Path = ROOT) -> None:
    """Raises HostMemoryError, by the narrowest limit, if `nbytes` more would not fit."""
    narrowest = min(bounds(root), default=None, key=lambda bound: bound.available)
    if narrowest is not None and nbytes > narrowest.available:
        raise HostMemoryError(
            f"{what} needs {bytes_text(nbytes)} of host memory, and "
            f"{bytes_text(max(0, narrowest.available))} are left: {narrowest.what}. "
            f"{narrowest.fix}"
        )
