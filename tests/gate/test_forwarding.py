"""Calls reach the driver as they were made, whatever way the program takes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from vramkit.launch.gate import gate_launch, gate_library
from vramkit.record.raw import Kind
from vramkit.record.run import read_all

from .support import SECONDS, Programs, bare_environment, run_gated


def test_arguments_of_all_kinds_arrive_in_the_first_call_and_later(programs: Programs) -> None:
    done = run_gated(programs.calls, "arguments", VRAMKIT_GATE_DRIVER=programs.fake_driver)
    assert (done.stdout, done.stderr) == ("1234 1234 0.75 1 42 2\n", "")


def test_first_calls_of_many_threads_at_once(programs: Programs, tmp_path: Path) -> None:
    """Each opens the driver if none has yet. All get its answers, and all are recorded."""
    variables = {"VRAMKIT_GATE_DRIVER": programs.fake_driver, "VRAMKIT_GATE_TRACE": tmp_path}
    done = run_gated(programs.calls, "together", **variables)
    assert (done.stdout, done.stderr) == ("16 right\n", "")
    (trace,) = read_all(tmp_path)
    assert sum(record.kind == Kind.ALLOCATION for record in trace.records) == 16


def test_all_names_of_the_library_are_one_library(programs: Programs) -> None:
    done = run_gated(programs.calls, "names", VRAMKIT_GATE_DRIVER=programs.fake_driver)
    assert done.stdout == "1 1 0\n"


def test_the_folder_alone_is_enough(programs: Programs) -> None:
    """Without LD_PRELOAD, which some launchers take away; the folder is searched for the driver
    too, and does not lead the gate to itself."""
    with gate_launch(["calls"], {}) as launch:
        folders = f"{launch.search_first}:{programs.fake_driver.parent}"
        for scenario, said in (("names", "1 1 0\n"), ("arguments", "1234 1234 0.75 1 42 2\n")):
            done = subprocess.run(
                [programs.calls, scenario],
                env={**bare_environment(), "LD_LIBRARY_PATH": folders},
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            assert (done.stdout, done.stderr) == (said, "")


def test_without_a_driver_calls_answer_as_without_a_card(programs: Programs) -> None:
    done = run_gated(programs.calls, "without_driver", VRAMKIT_GATE_DRIVER="/nowhere/libcuda.so.1")
    # cuInit: no device; version 0; no text for an error; no entry point; not initialised.
    assert done.stdout == "100 0 0 1 1 500 1 1 3\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_the_driver_is_searched_for_as_the_linker_does(programs: Programs, tmp_path: Path) -> None:
    """Copies of the gate on the way are passed over, which would else lead to each other without
    end, and files that are no library."""
    others = [tmp_path / name for name in ("copy", "another", "broken")]
    for folder in others:
        folder.mkdir()
    for folder in others[:2]:
        shutil.copy(gate_library(), folder / "libcuda.so.1")
    (others[2] / "libcuda.so.1").write_text("not a library")
    folders = [*others, programs.fake_driver.parent]
    done = subprocess.run(
        [programs.calls, "arguments"],
        env={
            **bare_environment(),
            "LD_PRELOAD": str(gate_library()),
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, folders)),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("1234 1234 0.75 1 42 2\n", "")


def test_a_program_without_cuda_opens_no_driver(programs: Programs) -> None:
    driver = programs.fake_driver
    done = run_gated(programs.calls, "unused", driver, VRAMKIT_GATE_DRIVER=driver)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 3)


@pytest.mark.parametrize("gate", ["records", "shares"])
@pytest.mark.parametrize(("scenario", "status"), [("quiet", 0), ("cheat", -signal.SIGKILL)])
def test_calls_after_the_first_make_no_system_call(
    programs: Programs, tmp_path: Path, scenario: str, status: int, gate: str
) -> None:
    """The kernel kills the program at a call other than read, write and exit: "cheat" makes one."""
    variables: dict[str, str | Path] = (
        {"VRAMKIT_GATE_TRACE": tmp_path} if gate == "records" else {"VRAMKIT_SHARE": "swap"}
    )
    done = run_gated(
        programs.calls, scenario, VRAMKIT_GATE_DRIVER=programs.fake_driver, **variables
    )
    if done.returncode == 77:
        pytest.skip("this kernel has no strict mode of seccomp")
    assert done.returncode == status
