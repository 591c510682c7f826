"""Programs of driver calls drawn at random: each call returns the same, and each byte read is the
same, with the memory of a shared program as without sharing.

programs/fuzz.cpp draws them from a seed. The checker watches both runs: that the program orders
its work natively, and that moving its memory keeps that order. What a shared card answers in its
own way is not drawn: ids of memory, free memory, exports to other processes, reserved bytes of
pools, addresses beyond what was allocated, memory of other contexts behind a reset, and
allocations while a capture forbids them.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import pytest
from soak import rounds

from .works import build_works, run_natively, run_shared_alone

pytestmark = pytest.mark.sim_only

STEPS = rounds(100, 600)
BEFORE = 15
"""Lines of the output that are shown before the first that differs."""
WAYS = {
    "untouched": ("swap", 0),
    "swapped": ("swap", 1),
    "seldom": ("swap", 7),
    "prefetched": ("prefetch", 1),
    "paged": ("paged", 1),
}


@pytest.fixture(scope="session")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_works(tmp_path_factory.mktemp("fuzz"), "fuzz")


def first_difference(native: str, shared: str) -> str:
    """Empty: there is none."""
    lines = native.splitlines()
    for number, (one, other) in enumerate(zip_longest(lines, shared.splitlines())):
        if one != other:
            before = "\n".join(lines[max(0, number - BEFORE) : number])
            return f"\n{before}\n- {one}\n+ {other}"
    return ""


@pytest.mark.parametrize("seed", range(rounds(6, 600)))
def test_every_call_returns_the_same(fuzz: Path, tmp_path: Path, seed: int) -> None:
    devices = 2 if seed % 5 == 3 else 1
    threads = 3 if seed % 4 == 2 else 1
    words = [str(fuzz), str(seed), str(STEPS), str(devices), str(threads)]
    settings = f"capacity=512MiB,devices={devices}"
    # That cuMemFree waits for work is not documented; programs rely on it.
    native = run_natively(words, tmp_path, settings, relies_on=("implicit_wait",))
    assert native.status == 0, native
    for way, (mode, chaos) in WAYS.items():
        folder = tmp_path / way
        folder.mkdir()
        told = {"VRAMKIT_SHARE": mode, "VRAMKIT_SHARE_CHAOS": str(chaos)}
        shared = run_shared_alone(words, folder, settings, told)
        difference = first_difference(native.output, shared.output)
        assert difference == "", f"{' '.join(words)}, {way}: {difference}\n{shared.log}"
        assert (shared.status, shared.errors) == (0, native.errors)
        assert chaos != 1 or "bytes out" in shared.log
