"""Room on the host: swapping and offload, which read it each for itself, find the same."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from host.machine import write, write_meminfo

from vramkit.host.available import bounds

MIB = 1 << 20
GIB = 1 << 30
NATIVE = Path(__file__).parents[2] / "native"
GROUP = "sys/fs/cgroup"
MEMORY_GROUP = "sys/fs/cgroup/memory"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = (shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++") if name)
    compiler = next(filter(None, found), None)
    if compiler is None:
        pytest.skip("no C++ compiler: set CXX, or install g++")
    program = tmp_path_factory.mktemp("host_room") / "host_room"
    sources = [Path(__file__).parent / "programs" / "host_room.cpp", NATIVE / "swap/host_room.cpp"]
    command = [compiler, "-std=c++20", "-I", NATIVE, *sources, "-o", program]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return program


def available_memory(root: Path) -> None:
    write_meminfo(root, MemTotal=16 << 20, MemFree=1 << 20, MemAvailable=8 << 20)


def no_groups(root: Path) -> None:
    available_memory(root)
    write(root, "proc/self/cgroup", "0::/not/visible/here\n")


def second_version(root: Path) -> None:
    """The fullest group decides, not the smallest, and file cache is not used memory."""
    available_memory(root)
    write(root, "proc/self/cgroup", "0::/full/inner/job\n")
    write(root, f"{GROUP}/full/inner/job/memory.max", f"{4 * GIB}\n")
    write(root, f"{GROUP}/full/inner/memory.max", "max\n")
    write(root, f"{GROUP}/full/memory.max", f"{20 * GIB}\n")
    write(root, f"{GROUP}/full/memory.current", f"{19 * GIB}\n")
    statistics = f"anon {18 * GIB}\ninactive_file {200 * MIB}\nactive_file {30 * MIB}\n"
    write(root, f"{GROUP}/full/memory.stat", statistics)


def first_version(root: Path) -> None:
    available_memory(root)
    write(root, "proc/self/cgroup", "12:cpu,cpuacct:/a\n4:hugetlb,memory:/a/job\n0::/\n")
    write(root, f"{MEMORY_GROUP}/a/job/memory.limit_in_bytes", "9223372036854771712\n")
    write(root, f"{MEMORY_GROUP}/a/memory.limit_in_bytes", f"{3 * GIB}\n")
    write(root, f"{MEMORY_GROUP}/a/memory.usage_in_bytes", f"{2 * GIB}\n")
    statistics = f"inactive_file 0\ntotal_inactive_file {50 * MIB}\ntotal_active_file {MIB}\n"
    write(root, f"{MEMORY_GROUP}/a/memory.stat", statistics)


def mount_of_a_container(root: Path) -> None:
    available_memory(root)
    write(root, "proc/self/cgroup", "0::/docker/0123\n")
    write(root, f"{GROUP}/memory.max", f"{2 * GIB}\n")
    write(root, f"{GROUP}/memory.current", f"{GIB}\n")


def group_over_its_limit(root: Path) -> None:
    available_memory(root)
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, f"{GROUP}/memory.max", f"{GIB}\n")
    write(root, f"{GROUP}/memory.current", f"{2 * GIB}\n")


@pytest.mark.parametrize(
    ("lay_out", "left", "by"),
    [
        (available_memory, 8 * GIB, "the available RAM"),
        (no_groups, 8 * GIB, "the available RAM"),
        (second_version, GIB + 230 * MIB, f"cgroup v2, {{}}/{GROUP}/full/memory.max"),
        (first_version, GIB + 51 * MIB, f"cgroup v1, {{}}/{MEMORY_GROUP}/a/memory.limit_in_bytes"),
        (mount_of_a_container, GIB, f"cgroup v2, {{}}/{GROUP}/memory.max"),
        (group_over_its_limit, 0, f"cgroup v2, {{}}/{GROUP}/memory.max"),
    ],
)
def test_swapping_and_offload_find_the_same_room(
    reader: Path, tmp_path: Path, lay_out: Callable[[Path], None], left: int, by: str
) -> None:
    lay_out(tmp_path)
    done = subprocess.run([reader, tmp_path], check=True, capture_output=True, text=True)
    found, found_by = done.stdout.rstrip().split(" ", 1)
    assert (int(found), found_by) == (left, by.format(tmp_path))
    # Of limits of the address space the system itself tells the engine, when it maps a slab.
    memory = [bound.available for bound in bounds(tmp_path) if "ulimit" not in bound.what]
    assert max(0, min(memory)) == left


def test_this_machine_has_room(reader: Path) -> None:
    done = subprocess.run([reader, ""], check=True, capture_output=True, text=True)
    assert 0 < int(done.stdout.split()[0]) < 1 << 50
