"""Host limits, read from a machine laid out in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from host.machine import write

from vramkit.doctor.limits import read_limits

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(
        tmp_path,
        "proc/meminfo",
        "MemTotal:       1048576 kB\nMemAvailable:    524288 kB\nHugePages_Free:        3\n"
        "Hugepagesize:       2048 kB\n",
    )
    return tmp_path


def test_memory_and_huge_pages_come_from_meminfo(root: Path) -> None:
    limits = read_limits(root)
    assert (limits.ram_total, limits.ram_available) == (GIB, GIB // 2)
    assert (limits.huge_pages_free, limits.huge_page_bytes) == (3, 2 << 20)


def test_the_chosen_huge_page_setting_is_the_one_in_brackets(root: Path) -> None:
    assert read_limits(root).transparent_huge_pages is None
    write(root, "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    assert read_limits(root).transparent_huge_pages == "never"


def test_no_cgroup_is_no_limit(root: Path) -> None:
    limits = read_limits(root)
    assert limits.memory_limit is None
    assert limits.host_memory() == GIB


def test_the_smallest_limit_of_the_groups_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/system.slice/job\n")
    write(root, "sys/fs/cgroup/system.slice/job/memory.max", "536870912\n")
    write(root, "sys/fs/cgroup/system.slice/memory.max", "268435456\n")
    limits = read_limits(root)
    assert limits.memory_limit == 256 << 20
    assert limits.memory_limit_source.startswith("cgroup v2")
    assert limits.memory_limit_source.endswith("system.slice/memory.max")
    assert limits.host_memory() == 256 << 20


def test_this_machine_can_be_read() -> None:
    limits = read_limits()
    assert limits.cpus >= 1
    assert limits.ram_total > limits.ram_available > 0
