"""What is left of host memory: the narrowest limit decides, and the error names it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from host.machine import write, write_meminfo
from vramkit.host.available import HostMemoryError, bounds, require

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The resource limits of the process, all unlimited at first."""
    limits: dict[int, int] = {}

    def getrlimit(which: int) -> tuple[int, int]:
        soft = limits.get(which, resource.RLIM_INFINITY)
        return soft, resource.RLIM_INFINITY

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    return limits


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_meminfo(
        tmp_path,
        MemTotal=16 << 20,
        MemAvailable=8 << 20,
        CommitLimit=12 << 20,
        Committed_AS=9 << 20,
    )
    write(tmp_path, "proc/self/status", f"VmSize:\t{3 << 20} kB\nVmData:\t{1 << 20} kB\n")
    return tmp_path


def refusal(nbytes: int, root: Path) -> str:
    require(nbytes - 1, "this", root=root)
    with pytest.raises(HostMemoryError) as caught:
        require(nbytes, "this", root=root)
    assert isinstance(caught.value, MemoryError)
    return str(caught.value)


def test_available_memory_is_a_limit(root: Path) -> None:
    assert refusal(8 * GIB + 1, root) == (
        "this needs 8.00 GiB of host memory, and 8 GiB are left: that is the available RAM (of "
        "16 GiB). End other programs, add RAM, or use a smaller or quantised model."
    )


def test_the_group_is_a_limit_less_what_it_uses(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/job\n")
    write(root, "sys/fs/cgroup/job/memory.max", f"{6 * GIB}\n")
    write(root, "sys/fs/cgroup/job/memory.current", f"{4 * GIB}\n")
    text = refusal(2 * GIB + 1, root)
    assert "2 GiB are left: cgroup v2, " in text
    assert "job/memory.max allows 6 GiB, of which 4 GiB are in use. Raise the container's" in text


def test_the_fullest_group_decides_not_the_smallest(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/full/job\n")
    write(root, "sys/fs/cgroup/full/job/memory.max", f"{4 * GIB}\n")
    write(root, "sys/fs/cgroup/full/memory.max", f"{20 * GIB}\n")
    write(root, "sys/fs/cgroup/full/memory.current", f"{19 * GIB}\n")
    assert "1 GiB are left: cgroup v2" in refusal(GIB + 1, root)


def test_a_group_over_its_limit_leaves_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/memory.max", f"{GIB}\n")
    write(root, "sys/fs/cgroup/memory.current", f"{2 * GIB}\n")
    with pytest.raises(HostMemoryError, match="0 B are left"):
        require(1, "this", root=root)


def test_address_space_is_a_limit_less_what_is_mapped(root: Path, limits: dict[int, int]) -> None:
    limits[resource.RLIMIT_AS] = 5 * GIB
    text = refusal(2 * GIB + 1, root)
    assert "`ulimit -v` allows 5 GiB, of which 3 GiB are in use. `ulimit -v unlimited`." in text


def test_private_data_is_a_limit(root: Path, limits: dict[int, int]) -> None:
    limits[resource.RLIMIT_DATA] = 5 * GIB
    assert "`ulimit -d` allows 5 GiB, of which 1 GiB" in refusal(4 * GIB + 1, root)


def test_locked_memory_is_no_limit(root: Path, limits: dict[int, int]) -> None:
    """The driver pins outside of it."""
    limits[resource.RLIMIT_MEMLOCK] = 8 * MIB
    require(8 * GIB, "this", root=root)


def test_without_overcommit_the_commit_limit_counts(root: Path) -> None:
    write(root, "proc/sys/vm/overcommit_memory", "0\n")
    require(8 * GIB, "this", root=root)
    write(root, "proc/sys/vm/overcommit_memory", "2\n")
    text = refusal(3 * GIB + 1, root)
    assert "does not overcommit and allows 12 GiB, of which 9 GiB are in use" in text


def test_nothing_to_read_is_no_limit(tmp_path: Path) -> None:
    assert bounds(tmp_path) == []
    require(1 << 60, "this", root=tmp_path)


def test_nothing_more_is_always_there(root: Path) -> None:
    require(0, "this", root=root)
