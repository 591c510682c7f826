"""What a launch puts before a program, and programs that cannot be started."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from vramkit.launch import Ended, Launch, LaunchError, ProgramNotFoundError, run_program

PYTHON = [sys.executable, "-I", "-S", "-c"]


def test_our_library_comes_before_what_the_caller_had() -> None:
    launch = Launch(["p"], {"NAME": "value"}, Path("/ours"), Path("/ours/gate.so"))
    base = {"LD_LIBRARY_PATH": "/theirs", "OTHER": "kept"}
    assert launch.environment(base) == {
        "LD_LIBRARY_PATH": "/ours:/theirs",
        "LD_PRELOAD": "/ours/gate.so",
        "NAME": "value",
        "OTHER": "kept",
    }


def test_nothing_is_added_that_was_not_asked_for() -> None:
    assert Launch(["p"]).environment({"OTHER": "kept"}) == {"OTHER": "kept"}


@pytest.mark.parametrize(
    "launch",
    [
        lambda: Launch([]),
        lambda: Launch("python my_program.py"),
        lambda: Launch(["p"], search_first=Path("/a:b")),
        lambda: Launch(["p"], preload=Path("/a b/gate.so")),
    ],
)
def test_what_could_not_work_is_refused(launch: object) -> None:
    with pytest.raises(LaunchError):
        launch()  # type: ignore[operator]


def test_output_is_captured_and_the_status_told() -> None:
    source = "import os, sys; print(os.environ['NAME']); sys.stderr.write('e'); sys.exit(3)"
    ended = run_program(Launch([*PYTHON, source], {"NAME": "value"}), capture=True)
    assert ended == Ended(3, None, "value\n", "e")


def test_a_program_that_a_signal_ends_has_its_name_and_the_shells_status() -> None:
    source = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_program(Launch([*PYTHON, source])) == Ended(137, "SIGKILL")


def test_a_thread_can_run_a_program() -> None:
    found: list[Ended] = []
    launch = Launch([*PYTHON, "raise SystemExit(5)"])
    thread = threading.Thread(target=lambda: found.append(run_program(launch)))
    thread.start()
    thread.join()
    assert found == [Ended(5, None)]


def refused(*program: str) -> ProgramNotFoundError:
    with pytest.raises(ProgramNotFoundError) as caught:
        run_program(Launch(program))
    return caught.value


def test_a_missing_program_is_named() -> None:
    error = refused("no-such-program-anywhere")
    assert (str(error), error.instead) == ("no-such-program-anywhere: not found", [])


def test_a_python_file_suggests_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("race.py").write_text("print(1)\n")
    assert refused("race.py", "-x").instead == ["python", "race.py", "-x"]
    assert refused("./race.py").instead == ["python", "./race.py"]
    Path("race.py").chmod(0o755)  # executable, but the kernel finds no "#!" line in it
    error = refused("./race.py")
    assert "Exec format error" in str(error)
    assert error.instead == ["python", "./race.py"]


def test_an_executable_of_this_folder_suggests_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program-of-mine").write_text("#!/bin/sh\n")
    assert "may not be executed" in str(refused("./program-of-mine"))
    Path("program-of-mine").chmod(0o755)
    assert refused("program-of-mine").instead == ["./program-of-mine"]
    assert str(refused(str(tmp_path))) == f"{tmp_path}: is a folder"
