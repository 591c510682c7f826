"""Memory for other processes: refused while it can move, given by the driver with `--ipc`.

The driver is the simulated GPU with the calls that it lacks, by `programs/exporting_driver.cpp`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .machine import MIB, Machine, Started, until
from .works import Done, build_exporting_driver, run_shared_alone

pytestmark = pytest.mark.sim_only

SETTINGS = "capacity=512MiB"
SIZE = 24
# Beside it: four pages of handles, and the page with the result of a sum.
HANDLES = 4 * 2 * MIB
REFUSED = "801 0, 801 0"  # CUDA_ERROR_NOT_SUPPORTED, and no handle
GIVEN = "0 1, 0 1"
ENDLESS = 1_000_000


@pytest.fixture(scope="session")
def exporting_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_exporting_driver(tmp_path_factory.mktemp("exporting"))


def run(works: Path, driver: Path, folder: Path, **told: str) -> Done:
    """With all memory on its way out and in at each launch."""
    folder.mkdir()
    variables = {"VRAMKIT_GATE_DRIVER": str(driver), "VRAMKIT_SHARE_CHAOS": "1", **told}
    words = [str(works), "exports", str(SIZE), "5"]
    done = run_shared_alone(words, folder, SETTINGS, variables)
    assert done.status == 0, done
    return done


def test_an_export_of_memory_that_moves_is_refused_and_says_why(
    works: Path, exporting_driver: Path, tmp_path: Path
) -> None:
    refused = run(works, exporting_driver, tmp_path / "swapped")
    first, *sums = refused.output.splitlines()
    assert first == REFUSED
    for call in ("cuIpcGetMemHandle", "cuMemExportToShareableHandle"):
        (said,) = (line for line in refused.log.splitlines() if call in line)
        assert "memory that is swapped cannot be given to another process" in said
        assert "run the program with --ipc" in said
    assert min(refused.swapped) >= SIZE * MIB + HANDLES
    # The program goes on, with what the same memory has that stays where it is.
    plain = run(works, exporting_driver, tmp_path / "plain", VRAMKIT_SHARE_IPC="1")
    assert plain.output.splitlines() == [GIVEN, *sums]
    assert plain.swapped == (0, 0)
    assert "--ipc" not in plain.log


@pytest.mark.parametrize("mode", ["prefetch", "paged"])
def test_managed_memory_is_not_exported_either(
    works: Path, exporting_driver: Path, tmp_path: Path, mode: str
) -> None:
    """Handles are the driver's in these modes, and stay on the card anyway."""
    done = run(works, exporting_driver, tmp_path / mode, VRAMKIT_SHARE=mode)
    assert done.output.splitlines()[0] == "801 0, 0 1"
    assert "cuIpcGetMemHandle: memory that is swapped" in done.log


def fixed(program: Started, machine: Machine) -> int:
    found = machine.find(program)
    return sum(card.unswappable for card in found.cards) if found is not None else 0


def test_exportable_memory_is_counted_and_stays(
    works: Path, exporting_driver: Path, machine: Machine
) -> None:
    """Others are shown what it leaves: 32 of 64 MiB, until it has ended."""
    machine.variables["VRAMKIT_GATE_DRIVER"] = str(exporting_driver)
    machine.start_daemon()
    exports = machine.start("exports", SIZE, ENDLESS, ipc=True)
    until(lambda: fixed(exports, machine) == SIZE * MIB + HANDLES, machine.status)
    until(lambda: exports.output == GIVEN + "\n", lambda: exports.log)
    larger, smaller = machine.start("rounds", 40, 5), machine.start("rounds", 24, 5)
    assert (larger.done().status, larger.output) == (3, "cuMemAlloc_v2: 2\n")
    assert smaller.done().status == 0
    found = machine.find(exports)
    assert found is not None
    (card,) = found.cards
    assert (card.resident, card.swapped, card.out_bytes) == (0, 0, 0)
    exports.kill()
    until(lambda: machine.find(exports) is None, machine.status)
    assert machine.start("rounds", 40, 5).done().status == 0


def test_swapped_memory_is_no_fixed_memory(
    works: Path, exporting_driver: Path, machine: Machine
) -> None:
    machine.variables["VRAMKIT_GATE_DRIVER"] = str(exporting_driver)
    machine.start_daemon()
    swapped = machine.start("exports", SIZE, ENDLESS)
    machine.until(swapped, lambda status: status.cards[0].resident >= SIZE * MIB + HANDLES)
    until(lambda: swapped.output == REFUSED + "\n", lambda: swapped.log)
    assert fixed(swapped, machine) == 0
