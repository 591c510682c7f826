"""Whatever a program does, it prints the same when all its memory leaves the card again and again.

Without other programs and without a daemon: VRAMKIT_SHARE_CHAOS is how many launches lie between
two such swaps. The checker of the simulated GPU sees the order of each access.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from clients.support import run_scenario, scenarios
from soak import rounds

from vramkit.launch.gate import gate_library

from .works import ROOT, run_natively, run_shared_alone

pytestmark = pytest.mark.sim_only

KINDS = (
    "memory",
    "mappings",
    "default_stream",
    "threads",
    "per_thread_streams",
    "graphs",
    "graph_allocates",
    "contexts",
    "out_of_memory",
    "fork_first",
    "fork_after",
    "exec",
)
WITHOUT_LAUNCHES = ("contexts", "out_of_memory")
SETTINGS = "capacity=512MiB"
STEPS = str(rounds(30, 1000))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_comes_out(works: Path, kind: str, tmp_path: Path) -> None:
    native = run_natively([str(works), kind, STEPS], tmp_path, SETTINGS)
    assert native.status == 0, native.output + native.errors
    for chaos in ("0", "1", "7", "64"):
        folder = tmp_path / chaos
        folder.mkdir()
        words = [str(works), kind, STEPS]
        done = run_shared_alone(words, folder, SETTINGS, {"VRAMKIT_SHARE_CHAOS": chaos})
        assert (done.status, done.output, done.errors) == (0, native.output, native.errors)
        assert "device 0 is used" in done.log
        if chaos in ("1", "7") and kind not in WITHOUT_LAUNCHES:
            assert min(done.swapped) > 0, done.log
        if chaos == "0":
            assert done.swapped == (0, 0)


PAGES = 4 * (2 << 20)


@pytest.mark.parametrize("kind", ["shareable", "compressible"])
def test_pages_of_special_handles(works: Path, kind: str, tmp_path: Path) -> None:
    """What may be exported moves as other memory does; what has another kind of memory stays."""
    words = [str(works), kind, "5"]
    native = run_natively(words, tmp_path, SETTINGS)
    done = run_shared_alone(words, tmp_path, SETTINGS, {"VRAMKIT_SHARE_CHAOS": "1"})
    assert (done.status, done.output, done.errors) == (0, native.output, native.errors)
    said = [line for line in done.log.splitlines() if "memory of this kind stays" in line]
    if kind == "shareable":
        assert min(done.swapped) >= 5 * PAGES
        assert said == []
    else:
        assert max(done.swapped) < 5 * PAGES  # the block for sums alone
        assert len(said) == 1
        assert "compression 1" in said[0]


# One times a copy, which now waits for its memory; one wants the last page back that it freed,
# and a page is kept for what is small.
NOT_THE_SAME = ("streams_and_events", "copies_and_fills")
CLIENTS = [
    pytest.param(program, scenario, id=f"{program}-{scenario}")
    for program in ("with_cuda_bindings", "with_cuda_core_and_vramkit")
    for scenario in scenarios(program)
    if scenario not in NOT_THE_SAME
]


@pytest.mark.parametrize("chaos", ["0", "1"])
@pytest.mark.parametrize(("program", "scenario"), CLIENTS)
def test_clients_check_their_results(
    program: str, scenario: str, chaos: str, tmp_path: Path
) -> None:
    run_scenario(
        program,
        scenario,
        tmp_path,
        LD_PRELOAD=str(gate_library()),
        VRAMKIT_DRIVER="sim",
        VRAMKIT_SHARE="swap",
        VRAMKIT_SHARE_CHAOS=chaos,
    )


@pytest.mark.parametrize("chaos", ["0", "1"])
def test_vramkits_own_pool(chaos: str, tmp_path: Path) -> None:
    """Its handles are the library's, which moves what they are mapped to."""
    words = [sys.executable, str(ROOT / "tests" / "gate" / "programs" / "on_vramkit.py")]
    done = run_shared_alone(words, tmp_path, SETTINGS, {"VRAMKIT_SHARE_CHAOS": chaos})
    assert (done.status, done.output) == (0, "done\n"), done.errors
    assert (min(done.swapped) > 0) == (chaos == "1")
