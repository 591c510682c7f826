"""What the host allows: read from /proc, /sys, the cgroup tree and the resource limits."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

from vramkit.doctor.facts import Limits


def read_limits(root: Path = Path("/")) -> Limits:
    """`root` stands for /, so that tests can lay out a machine in a folder."""
    memory = _meminfo(root)
    limit, source = _memory_limit(root)
    shared = _shared_memory(root)
    return Limits(
        cpus=len(os.sched_getaffinity(0)),
        ram_total=memory.get("MemTotal", 0),
        ram_available=memory.get("MemAvailable", 0),
        memory_limit=limit,
        memory_limit_source=source,
        locked_memory=_resource_limit(resource.RLIMIT_MEMLOCK),
        address_space=_resource_limit(resource.RLIMIT_AS),
        transparent_huge_pages=_chosen(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        huge_pages_free=memory.get("HugePages_Free", 0),
        huge_page_bytes=memory.get("Hugepagesize", 0),
        shared_memory_total=None if shared is None else shared[0],
        shared_memory_free=None if shared is None else shared[1],
        overcommit=_integer(root / "proc/sys/vm/overcommit_memory"),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _integer(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdecimal() else None


def _meminfo(root: Path) -> dict[str, int]:
    """Bytes by name; HugePages_* are counts."""
    pattern = re.compile(r"^(\S+):\s+(\d+)( kB)?$", re.MULTILINE)
    text = _text(root / "proc/meminfo") or ""
    return {name: int(value) * (1024 if kib else 1) for name, value, kib in pattern.findall(text)}


def _resource_limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _chosen(path: Path) -> str | None:
    """The word in brackets: "always [madvise] never" is madvise."""
    found = re.search(r"\[(\w+)\]", _text(path) or "")
    return found.group(1) if found else None


def _shared_memory(root: Path) -> tuple[int, int] | None:
    try:
        space = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize


def _memory_limit(root: Path) -> tuple[int | None, str]:
    """The smallest limit from our group up to the root, in either version of control groups.

    Inside a container the group's path is often not visible; then the mount's own root is ours.
    """
    groups = (_text(root / "proc/self/cgroup") or "").splitlines()
    found: list[tuple[int, str]] = []
    for group in groups:
        number, controllers, path = group.split(":", 2)
        if number == "0" and not controllers:
            found += _limits_up(root / "sys/fs/cgroup", path, "memory.max", "cgroup v2")
        elif "memory" in controllers.split(","):
            folder = root / "sys/fs/cgroup/memory"
            found += _limits_up(folder, path, "memory.limit_in_bytes", "cgroup v1")
    return min(found, default=(None, "no cgroup limit"), key=lambda item: item[0] or 0)


def _limits_up(mount: Path, path: str, name: str, version: str) -> list[tuple[int, str]]:
    """Version 1 writes "no limit" as a number near 2**63, version 2 as max."""
    found = []
    folder = mount / path.strip("/")
    for place in (folder, *folder.parents):
        value = _integer(place / name)
        if value is not None and value < 1 << 60:
            found.append((value, f"{version}, {place / name}"))
        if place == mount:
            break
    return found
