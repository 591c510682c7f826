"""Stream-ordered memory, boxes and batches: the same with and without sharing, however often the
program's memory leaves the card."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from vramkit.driver.opening import sim_folder
from vramkit.launch.gate import gate_library

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "programs" / "works.cpp"
SECONDS = 60

VIRTUAL = {"cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess"}
FROM_DRIVER = {"cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync"}


@pytest.fixture(scope="session")
def works(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = (shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++") if name)
    compiler = next(filter(None, found), None)
    if compiler is None:
        pytest.skip("no C++ compiler: set CXX, or install g++")
    program = tmp_path_factory.mktemp("async") / "works"
    options = ["-O1", "-std=c++20", "-w", f"-I{ROOT / 'native'}", "-Wl,--no-as-needed"]
    libraries = [str(sim_folder() / "libcuda.so.1"), "-lpthread", "-ldl"]
    command = [compiler, *options, str(SOURCE), "-o", str(program), *libraries]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return program


@dataclass
class Done:
    stdout: str
    log: str
    calls: Counter[str]  # that reached the driver; none known where the program ended in the middle

    def made(self, names: set[str]) -> set[str]:
        return {name for name in names if self.calls[name] > 0}


def run(
    program: Path, folder: Path, kind: str, steps: int, cards: int = 1, **variables: str
) -> Done:
    """Natively, or under the gate where `variables` say how; nothing may be reported."""
    folder.mkdir()
    log = folder / "log"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("VRAMKIT_")},
        "CALLS": "1",
        "VRAMKIT_DRIVER": "sim",
        "VRAMKIT_SIM": f"capacity=512MiB,devices={cards},reports={folder / 'reports'}",
        "KERNELS": str(ROOT / "src" / "vramkit" / "driver" / "kernels.ptx"),
        "LD_LIBRARY_PATH": str(sim_folder()),
        "VRAMKIT_SHARE_LOG": str(log),
        **variables,
    }
    done = subprocess.run(
        [str(program), kind, str(steps)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = sorted(folder.glob("reports*"))
    assert files
    for file in files:
        report = json.loads(file.read_text(encoding="utf-8"))
        assert (report["reports"], report["left_out"]) == ([], 0)
    calls = Counter(json.loads(done.stderr or "{}"))
    return Done(done.stdout, log.read_text(encoding="utf-8") if log.exists() else "", calls)


def shared(
    program: Path,
    folder: Path,
    kind: str,
    steps: int,
    chaos: int,
    cards: int = 1,
    **variables: str,
) -> Done:
    return run(
        program,
        folder,
        kind,
        steps,
        cards,
        LD_PRELOAD=str(gate_library()),
        VRAMKIT_SHARE="swap",
        VRAMKIT_SHARE_CHAOS=str(chaos),
        **variables,
    )


@pytest.mark.parametrize("chaos", [0, 1, 7])
@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("async", 150),
        ("async_threads", 25),
        ("async_per_thread_streams", 25),
        ("handed", 40),
        ("pools", 1),
        ("async_fork", 30),
        ("streams_end", 30),
        ("unused", 10),
        ("boxes", 60),
        ("first_uses", 1),
        ("misuse", 1),
        ("counted", 1),
    ],
)
def test_a_program_prints_the_same_as_without_sharing(
    works: Path, tmp_path: Path, kind: str, steps: int, chaos: int
) -> None:
    alone = run(works, tmp_path / "alone", kind, steps)
    gated = shared(works, tmp_path / "gated", kind, steps, chaos)
    assert alone.stdout != ""
    assert gated.stdout == alone.stdout
    assert "swapping" not in gated.log  # what could not be moved is logged
    # What is wrong with a call is left to the driver, and so is all after a fork.
    if kind not in ("pools", "async_fork"):
        assert gated.made(FROM_DRIVER) == set()


@pytest.mark.parametrize("chaos", [0, 1])
def test_streams_of_other_contexts_keep_the_memory_of_the_driver(
    works: Path, tmp_path: Path, chaos: int
) -> None:
    alone = run(works, tmp_path / "alone", "async_contexts", 1)
    gated = shared(works, tmp_path / "gated", "async_contexts", 1, chaos)
    assert gated.stdout == alone.stdout
    assert gated.calls["cuMemAllocAsync"] == 2
    assert gated.log.count("outside the primary context stays on the card") == 1


@pytest.mark.parametrize("chaos", [0, 1])
def test_streams_of_one_card_free_what_another_one_has(
    works: Path, tmp_path: Path, chaos: int
) -> None:
    alone = run(works, tmp_path / "alone", "two_cards", 20, cards=2)
    gated = shared(works, tmp_path / "gated", "two_cards", 20, chaos, cards=2)
    assert gated.stdout == alone.stdout
    assert gated.made(FROM_DRIVER) == set()


@pytest.mark.parametrize("chaos", [0, 1])
def test_a_capture_is_left_to_the_driver(works: Path, tmp_path: Path, chaos: int) -> None:
    alone = run(works, tmp_path / "alone", "graph_memory", 20)
    gated = shared(works, tmp_path / "gated", "graph_memory", 20, chaos)
    assert gated.stdout == alone.stdout
    assert gated.calls["cuMemAllocAsync"] == 1


def test_memory_that_must_stay_counts_until_it_is_freed(works: Path, tmp_path: Path) -> None:
    alone = run(works, tmp_path / "alone", "counted", 1)
    gated = shared(works, tmp_path / "gated", "counted", 1, 0, VRAMKIT_SHARE_IPC="1")
    assert gated.stdout == alone.stdout == f"{40 << 20} 1\n"
    assert gated.calls["cuMemAllocPitch_v2"] == 1


def test_a_warm_pair_makes_no_virtual_memory_call(works: Path, tmp_path: Path) -> None:
    gated = shared(works, tmp_path / "gated", "warm_pairs", 50, 0)
    assert gated.made(VIRTUAL | FROM_DRIVER) == set()
    assert gated.calls["cuLaunchKernel"] == 50
    # Which stream, and whether it is captured: for each allocation and each free.
    assert gated.calls["cuStreamGetId"] == gated.calls["cuStreamGetCtx"] == 4 * 50


@pytest.mark.parametrize("chaos", [0, 1])
def test_a_program_can_end_while_its_threads_allocate(
    works: Path, tmp_path: Path, chaos: int
) -> None:
    for turn in range(3):
        shared(works, tmp_path / str(turn), "async_exit", 20, chaos)
