"""Readers of /proc, of the cgroup tree and of the resource limits.

`root` stands for /, so that tests can lay out a machine in a folder.
"""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")


class MemoryGroup(NamedTuple):
    """A control group with a memory limit that holds for this process."""

    limit: int
    used: int  # without the file cache, which the kernel drops before it refuses memory
    source: str


class _Version(NamedTuple):
    """Where a version of control groups keeps its figures."""

    name: str
    mount: str
    limit: str
    usage: str
    file_cache: tuple[str, str]  # in memory.stat, with the groups below


_V1 = _Version(
    "cgroup v1",
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_V2 = _Version(
    "cgroup v2",
    "sys/fs/cgroup",
    "memory.max",
    "memory.current",
    ("inactive_file", "active_file"),
)


def read_text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def read_integer(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text is not None and text.isdecimal() else None


def read_table(path: Path) -> dict[str, int]:
    """The numbers of a file such as /proc/meminfo, by name; those in kB become bytes."""
    pattern = re.compile(r"^(\w\S*?):?\s+(\d+)( kB)?$", re.MULTILINE)
    text = read_text(path) or ""
    return {name: int(value) * (1024 if kib else 1) for name, value, kib in pattern.findall(text)}


def read_meminfo(root: Path = ROOT) -> dict[str, int]:
    """Bytes by name; HugePages_* are counts."""
    return read_table(root / "proc/meminfo")


def resource_limit(which: int) -> int | None:
    """The soft limit; None: unlimited."""
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def memory_groups(root: Path = ROOT) -> list[MemoryGroup]:
    """Every limit from our group up to the root, in either version of control groups.

    Inside a container the group's path is often not visible; then the mount's own root is ours.
    """
    found: list[MemoryGroup] = []
    for group in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, path = group.split(":", 2)
        if number == "0" and not controllers:
            found += _groups_up(root, path, _V2)
        elif "memory" in controllers.split(","):
            found += _groups_up(root, path, _V1)
    return found


def _groups_up(root: Path, path: str, version: _Version) -> list[MemoryGroup]:
    """Version 1 writes "no limit" as a number near 2**63, version 2 as max."""
    found = []
    mount = root / version.mount
    folder = mount / path.strip("/")
    for place in (folder, *folder.parents):
        limit = read_integer(place / version.limit)
        if limit is not None and limit < 1 << 60:
            source = f"{version.name}, {place / version.limit}"
            found.append(MemoryGroup(limit, _used(place, version), source))
        if place == mount:
            break
    return found


def _used(place: Path, version: _Version) -> int:
    usage = read_integer(place / version.usage) or 0
    statistics = read_table(place / "memory.stat")
    return max(0, usage - sum(statistics.get(name, 0) for name in version.file_cache))
