"""`vramkit check` over right and wrong programs in Python, in C++ and with NVIDIA's bindings."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .support import SETTINGS, Vramkit

PROGRAMS = Path(__file__).with_name("programs")
PYTHON = sys.executable


@pytest.fixture
def vramkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Vramkit:
    """The command in this process: the checked program is one of its own, and one is enough."""
    from vramkit.cli import main

    monkeypatch.chdir(tmp_path)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            status = main(arguments)
        return subprocess.CompletedProcess(arguments, status, *capfd.readouterr())

    return run


def line_of(program: str, mark: str) -> str:
    """file:line of the line that carries a comment."""
    lines = (PROGRAMS / program).read_text().splitlines()
    [number] = [n for n, line in enumerate(lines, 1) if line.rstrip().endswith(mark)]
    return f"{program}:{number}"


def test_a_race_is_reported_with_both_lines_and_a_remedy(vramkit: Vramkit) -> None:
    result = vramkit("check", "--", PYTHON, str(PROGRAMS / "wrong.py"), COLUMNS="200")
    assert result.returncode == 1
    assert "Race (error)" in result.stderr
    assert "4 KiB" in result.stderr
    assert line_of("wrong.py", "# first") in result.stderr
    assert line_of("wrong.py", "# second") in result.stderr
    assert "cuMemcpyHtoDAsync writes" in result.stderr
    assert "cuLaunchKernel reads" in result.stderr
    assert "cuStreamWaitEvent" in result.stderr
    assert "1 error, 0 warnings" in result.stderr
    assert "simulated card, profile h200" in result.stderr
    assert result.stdout == ""


def test_its_correct_twin_passes_with_its_output_untouched(vramkit: Vramkit) -> None:
    result = vramkit("check", "--", PYTHON, str(PROGRAMS / "right.py"))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "the program's own output\n"
    assert "no report" in result.stderr


def document(vramkit: Vramkit, *arguments: str, output: Path) -> tuple[int, dict[str, Any]]:
    result = vramkit("check", "--json", "--output", str(output), *arguments)
    return result.returncode, json.loads(output.read_text())


def test_json_holds_the_report(vramkit: Vramkit, tmp_path: Path) -> None:
    status, facts = document(
        vramkit, "--", PYTHON, str(PROGRAMS / "wrong.py"), output=tmp_path / "facts.json"
    )
    assert status == facts["status"] == 1
    assert (facts["simulated"], facts["profile"]) == (True, "h200")
    assert (facts["errors"], facts["warnings"], facts["program_status"]) == (1, 0, 0)
    [process] = [process for process in facts["processes"] if process["reports"]]
    [report] = process["reports"]
    assert (report["kind"], report["nbytes"]) == ("race", 4096)
    assert report["first"]["access"] == "write"
    assert report["second"]["access"] == "read"
    assert report["first"]["stream"] != report["second"]["stream"]


def test_json_goes_to_stdout_after_the_programs_output(vramkit: Vramkit) -> None:
    result = vramkit("check", "--json", "--", PYTHON, str(PROGRAMS / "right.py"))
    assert result.returncode == 0
    first, rest = result.stdout.split("\n", 1)
    assert first == "the program's own output"
    assert json.loads(rest)["errors"] == 0
    assert result.stderr == ""


def test_a_warning_fails_only_on_request(vramkit: Vramkit) -> None:
    program = [PYTHON, str(PROGRAMS / "warned.py")]
    result = vramkit("check", "--", *program)
    assert result.returncode == 0, result.stderr
    assert "0 errors, 1 warning" in result.stderr
    assert "does not document" in " ".join(result.stderr.split())
    assert vramkit("check", "--warnings-as-errors", "--", *program).returncode == 1


def test_findings_can_go_to_a_file(vramkit: Vramkit, tmp_path: Path) -> None:
    target = tmp_path / "findings.txt"
    result = vramkit("check", "--output", str(target), "--", PYTHON, str(PROGRAMS / "wrong.py"))
    assert result.returncode == 1
    assert result.stderr == ""
    assert "Race (error)" in target.read_text()


def test_findings_that_could_not_be_written_are_told_before_the_program_starts(
    vramkit: Vramkit, tmp_path: Path
) -> None:
    for target, words in ((tmp_path / "nowhere" / "x", "there is no folder"), (tmp_path, "folder")):
        result = vramkit("check", "--output", str(target), "--", PYTHON, "-c", "print('started')")
        assert (result.returncode, result.stdout) == (2, "")
        assert f"--output {target}: " in result.stderr and words in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_told_before_the_program_starts(
    vramkit: Vramkit, tmp_path: Path
) -> None:
    target = tmp_path / "findings.txt"
    target.touch(mode=0o400)
    result = vramkit("check", "--output", str(target), "--", PYTHON, "-c", "print('started')")
    assert (result.returncode, result.stdout) == (2, "")
    assert "may not be written" in result.stderr


def test_a_program_without_a_driver_call_was_not_checked(vramkit: Vramkit) -> None:
    result = vramkit("check", "--", PYTHON, "-c", "print('hello')")
    assert result.returncode == 3
    assert result.stdout == "hello\n"
    assert "no driver call: nothing was checked" in result.stderr


def test_the_programs_own_failure_is_passed_on(vramkit: Vramkit) -> None:
    source = "import sys, vramkit; vramkit.driver.open().device(); sys.exit(42)"
    result = vramkit("check", "--", PYTHON, "-c", source)
    assert result.returncode == 42
    assert "the program ended with status 42" in result.stderr


def test_a_killed_program_is_128_and_its_signal(vramkit: Vramkit) -> None:
    source = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    result = vramkit("check", "--", PYTHON, "-c", source)
    assert result.returncode == 137
    assert "ended by SIGKILL" in result.stderr
    assert "nothing was checked" not in result.stderr


def test_a_killed_program_keeps_its_reports(vramkit: Vramkit, tmp_path: Path) -> None:
    program = tmp_path / "killed.py"
    wrong = (PROGRAMS / "wrong.py").read_text()
    program.write_text(f"{wrong}\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    result = vramkit("check", "--", PYTHON, str(program))
    assert result.returncode == 1
    assert "Race (error)" in result.stderr
    found, ended = result.stderr.splitlines()[-2:]
    assert found.startswith("vramkit check: 1 error, 0 warnings; at least ")
    assert ended == (
        "vramkit check: the program was ended by SIGKILL (status 137); "
        "the exit status of the check is 1"
    )


def test_reports_come_before_the_programs_own_failure(vramkit: Vramkit, tmp_path: Path) -> None:
    source = (PROGRAMS / "wrong.py").read_text() + "\nraise SystemExit(42)\n"
    program = tmp_path / "wrong_and_failing.py"
    program.write_text(source)
    result = vramkit("check", "--", PYTHON, str(program))
    assert result.returncode == 1
    assert "the program ended with status 42; the exit status of the check is 1" in result.stderr
    assert "Race (error)" in result.stderr
    kept = vramkit("check", "--json", "--error-exitcode", "0", "--", PYTHON, str(program))
    assert kept.returncode == 42
    facts = json.loads(kept.stdout)
    assert (facts["verdict"], facts["status"], facts["program_status"]) == ("reports", 42, 42)


def test_an_exit_status_that_no_process_can_have_is_wrong_usage(vramkit: Vramkit) -> None:
    result = vramkit("check", "--error-exitcode", "256", "--", "true")
    assert result.returncode == 2
    assert "0 to 255" in result.stderr


def test_a_sigint_to_the_command_alone_ends_the_program() -> None:
    source = "import signal; signal.alarm(30); print('ready', flush=True); signal.pause()"
    command = [PYTHON, "-m", "vramkit.cli", "check", "--", PYTHON, "-c", source]
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # may be ignored here
    try:
        check = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    with check:
        assert check.stdout is not None and check.stderr is not None
        assert check.stdout.readline() == "ready\n"
        check.send_signal(signal.SIGINT)
        assert "ended by SIGINT (status 130); passed on" in check.stderr.read()
    assert check.returncode == 130


def test_children_of_the_program_are_checked_too(vramkit: Vramkit, tmp_path: Path) -> None:
    source = (
        f"import subprocess, sys; subprocess.run([sys.executable, {str(PROGRAMS / 'wrong.py')!r}])"
    )
    status, facts = document(vramkit, "--", PYTHON, "-c", source, output=tmp_path / "facts.json")
    assert status == 1
    assert facts["errors"] == 1


def test_a_missing_program_is_127_and_one_line(vramkit: Vramkit) -> None:
    result = vramkit("check", "--", "no-such-program-anywhere")
    assert result.returncode == 127
    assert result.stderr == "vramkit: no-such-program-anywhere: not found\n"


def test_a_python_file_without_python_is_told_how_to_run_it(
    vramkit: Vramkit, tmp_path: Path
) -> None:
    (tmp_path / "race.py").touch()
    result = vramkit("check", "race.py", "argument")
    assert result.returncode == 127
    assert "try: vramkit check -- python race.py argument\n" in result.stderr


def test_no_program_is_wrong_usage(vramkit: Vramkit) -> None:
    result = vramkit("check")
    assert result.returncode == 2
    assert "needs a program" in result.stderr


def test_an_unknown_option_is_wrong_usage(vramkit: Vramkit) -> None:
    result = vramkit("check", "--jsn", "--", PYTHON, "-c", "print('started')")
    assert (result.returncode, result.stdout) == (2, "")
    assert "no option --jsn" in result.stderr


def test_an_unknown_profile_is_wrong_usage_and_starts_nothing(vramkit: Vramkit) -> None:
    result = vramkit("check", "--profile", "no-such-card", "--", PYTHON, "-c", "print('started')")
    assert result.returncode == 2
    assert "no-such-card" in result.stderr and "h200" in result.stderr
    assert result.stdout == ""


def test_options_after_the_delimiter_are_the_programs(vramkit: Vramkit) -> None:
    source = "import sys; print(sys.argv[1:])"
    result = vramkit("check", "--", PYTHON, "-c", source, "--json", "--", "-x")
    assert result.stdout == "['--json', '--', '-x']\n"


def test_settings_of_the_environment_stay_in_force(vramkit: Vramkit) -> None:
    source = (
        "import vramkit\n"
        "settings = vramkit.driver.open().sim.settings()\n"
        "print(settings.capacity, settings.checker, settings.profile)\n"
    )
    result = vramkit(
        "check", "--profile", "weight-streaming", "--", PYTHON, "-c", source,
        VRAMKIT_SIM="capacity=64MiB,checker=off,profile=h200",
    )  # fmt: skip
    assert result.stdout == f"{64 << 20} True weight-streaming\n"


needs_bindings = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None, reason="cuda-bindings is not installed"
)


@needs_bindings
def test_nvidias_bindings_run_unmodified(vramkit: Vramkit) -> None:
    program = str(PROGRAMS / "bindings.py")
    wrong = vramkit("check", "--", PYTHON, program, "unordered", COLUMNS="200")
    assert wrong.returncode == 1, wrong.stderr
    assert "Race (error)" in wrong.stderr
    assert "bindings.py:" in wrong.stderr
    right = vramkit("check", "--", PYTHON, program, "ordered")
    assert right.returncode == 0, right.stderr


@pytest.fixture(scope="module")
def native_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path_factory.mktemp("native") / "native"
    source = str(PROGRAMS / "native.cpp")
    subprocess.run([compiler, "-g", "-O0", source, "-o", str(program), "-ldl"], check=True)
    return program


def test_a_native_program_is_checked(vramkit: Vramkit, native_program: Path) -> None:
    wrong = vramkit("check", "--", str(native_program), COLUMNS="200")
    assert wrong.returncode == 1, wrong.stderr
    assert "cuMemsetD8Async writes" in wrong.stderr
    right = vramkit("check", "--", str(native_program), "ordered")
    assert right.returncode == 0, right.stderr


@pytest.mark.skipif(shutil.which("addr2line") is None, reason="no addr2line")
def test_native_places_become_source_lines(vramkit: Vramkit, native_program: Path) -> None:
    for stacks in ("off", "native"):
        result = vramkit("check", "--stacks", stacks, "--", str(native_program), COLUMNS="200")
        assert line_of("native.cpp", "// first") in result.stderr
        assert line_of("native.cpp", "// second") in result.stderr


def test_bad_settings_are_told_before_the_program_starts(vramkit: Vramkit) -> None:
    done = vramkit("check", "--", "true", VRAMKIT_SIM="foo=1")
    assert done.returncode == 2
    assert "foo" in done.stderr and "profile" in done.stderr


def test_a_process_that_leaves_at_once_keeps_its_reports(vramkit: Vramkit, tmp_path: Path) -> None:
    program = tmp_path / "leaves.py"
    wrong = PROGRAMS / "wrong.py"
    program.write_text(f"import os\nexec(open({str(wrong)!r}).read())\nos._exit(0)\n")
    done = vramkit("check", "--", sys.executable, str(program))
    assert done.returncode == 1
    assert "Race" in done.stderr
