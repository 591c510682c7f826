"""What the host allows: read from /proc, /sys, the cgroup tree and the resource limits."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

from vramkit.doctor.facts import Limits
from vramkit.host.limits import (
    ROOT,
    memory_groups,
    read_integer,
    read_meminfo,
    read_text,
    resource_limit,
)


def read_limits(root: Path = ROOT) -> Limits:
    """`root` stands for /, so that tests can lay out a machine in a folder."""
    memory = read_meminfo(root)
    group = min(memory_groups(root), default=None, key=lambda group: group.limit)
    shared = _shared_memory(root)
    return Limits(
        cpus=len(os.sched_getaffinity(0)),
        ram_total=memory.get("MemTotal", 0),
        ram_available=memory.get("MemAvailable", 0),
        memory_limit=None if group is None else group.limit,
        memory_limit_source="no cgroup limit" if group is None else group.source,
        locked_memory=resource_limit(resource.RLIMIT_MEMLOCK),
        address_space=resource_limit(resource.RLIMIT_AS),
        transparent_huge_pages=_chosen(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        huge_pages_free=memory.get("HugePages_Free", 0),
        huge_page_bytes=memory.get("Hugepagesize", 0),
        shared_memory_total=None if shared is None else shared[0],
        shared_memory_free=None if shared is None else shared[1],
        overcommit=read_integer(root / "proc/sys/vm/overcommit_memory"),
    )


def _chosen(path: Path) -> str | None:
    """The word in brackets: "always [madvise] never" is madvise."""
    found = re.search(r"\[(\w+)\]", read_text(path) or "")
    return found.group(1) if found else None


def _shared_memory(root: Path) -> tuple[int, int] | None:
    try:
        space = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
