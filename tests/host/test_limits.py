"""Limits of control groups, read from a machine laid out in a folder."""

from __future__ import annotations

from pathlib import Path

from host.machine import write
from vramkit.host.limits import memory_groups, read_meminfo, read_table

MIB = 1 << 20


def test_version_two_has_every_limit_up_the_tree(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/a/b/c\n")
    write(tmp_path, "sys/fs/cgroup/a/b/c/memory.max", f"{512 * MIB}\n")
    write(tmp_path, "sys/fs/cgroup/a/b/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.max", f"{256 * MIB}\n")
    inner, outer = memory_groups(tmp_path)
    assert (inner.limit, outer.limit) == (512 * MIB, 256 * MIB)
    assert inner.source == f"cgroup v2, {tmp_path}/sys/fs/cgroup/a/b/c/memory.max"


def test_version_one_has_a_number_for_no_limit(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:memory:/job\n0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert memory_groups(tmp_path) == []
    write(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{MIB}\n")
    (group,) = memory_groups(tmp_path)
    assert group.limit == MIB
    assert group.source.startswith("cgroup v1, ")


def test_a_group_that_is_not_visible_leaves_the_mount_itself(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/not/visible/here\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "4096\n")
    assert [group.limit for group in memory_groups(tmp_path)] == [4096]


def test_file_cache_does_not_count_as_used_in_version_two(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/job\n")
    write(tmp_path, "sys/fs/cgroup/job/memory.max", f"{100 * MIB}\n")
    write(tmp_path, "sys/fs/cgroup/job/memory.current", f"{90 * MIB}\n")
    statistics = f"anon {20 * MIB}\ninactive_file {40 * MIB}\nactive_file {30 * MIB}\n"
    write(tmp_path, "sys/fs/cgroup/job/memory.stat", statistics)
    assert [group.used for group in memory_groups(tmp_path)] == [20 * MIB]


def test_file_cache_does_not_count_as_used_in_version_one(tmp_path: Path) -> None:
    """Only the totals have the groups below, as the usage has."""
    folder = "sys/fs/cgroup/memory/job"
    write(tmp_path, "proc/self/cgroup", "4:memory:/job\n")
    write(tmp_path, f"{folder}/memory.limit_in_bytes", f"{100 * MIB}\n")
    write(tmp_path, f"{folder}/memory.usage_in_bytes", f"{90 * MIB}\n")
    statistics = f"inactive_file 0\ntotal_inactive_file {50 * MIB}\ntotal_active_file {10 * MIB}\n"
    write(tmp_path, f"{folder}/memory.stat", statistics)
    assert [group.used for group in memory_groups(tmp_path)] == [30 * MIB]


def test_usage_that_cannot_be_read_counts_as_nothing(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "4096\n")
    assert [group.used for group in memory_groups(tmp_path)] == [0]


def test_tables_have_names_with_and_without_colon(tmp_path: Path) -> None:
    write(tmp_path, "table", "Active(anon):  2 kB\nHugePages_Free: 3\nName:\tbash\nanon 5\n")
    assert read_table(tmp_path / "table") == {"Active(anon)": 2048, "HugePages_Free": 3, "anon": 5}


def test_this_machine_can_be_read() -> None:
    memory = read_meminfo()
    assert memory["MemTotal"] > memory["MemAvailable"] > 0
    assert read_table(Path("/proc/self/status"))["VmSize"] > 0
    assert all(group.limit > 0 for group in memory_groups())
