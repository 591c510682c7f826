"""The frame of the command: help, version, errors in one line."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

from .support import Vramkit


def test_version_is_that_of_the_package(vramkit: Vramkit) -> None:
    result = vramkit("--version")
    assert result.returncode == 0
    assert result.stdout.strip() == f"vramkit {version('vramkit')}"


def test_help_lists_the_commands(vramkit: Vramkit) -> None:
    result = vramkit("--help")
    assert result.returncode == 0
    assert "GPU memory for work that no longer fits the card." in result.stdout
    for command in ("doctor", "check", "plan", "demo"):
        assert f"│ {command} " in result.stdout


def test_help_loads_no_command_and_no_driver() -> None:
    program = (
        "import sys, vramkit.cli\n"
        "assert vramkit.cli.main(['--help']) == 0\n"
        "heavy = {'vramkit.driver', 'vramkit._core', 'vramkit.cli.doctor', 'vramkit.doctor'}\n"
        "sys.exit(f'loaded {heavy & sys.modules.keys()}' if heavy & sys.modules.keys() else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_help_of_a_command_says_its_exit_statuses(vramkit: Vramkit) -> None:
    result = vramkit("check", "--help")
    assert result.returncode == 0
    said = " ".join(result.stdout.split())
    assert "Exit status: 0 no report and the program succeeded, 1 reports" in said
    assert "else the program's own" in said


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("vramkit: ")
    return lines[0]


def test_an_unknown_command_is_one_line_and_usage(vramkit: Vramkit) -> None:
    result = vramkit("doctr")
    assert result.returncode == 2
    assert "doctr" in one_line(result) and "doctor" in one_line(result)


def test_an_unknown_option_is_one_line_and_usage(vramkit: Vramkit) -> None:
    result = vramkit("doctor", "--bogus")
    assert result.returncode == 2
    assert "--bogus" in one_line(result)


def test_a_bad_driver_is_one_line_and_usage(vramkit: Vramkit) -> None:
    result = vramkit("doctor", "--driver", "rocm")
    assert result.returncode == 2
    assert "rocm" in one_line(result) and "sim" in one_line(result)


def test_an_unknown_profile_is_one_line_and_usage(vramkit: Vramkit) -> None:
    result = vramkit("doctor", "--driver", "sim:no-such-card")
    assert result.returncode == 2
    assert "no-such-card" in one_line(result)


def test_debug_shows_the_traceback(vramkit: Vramkit) -> None:
    result = vramkit("doctor", "--driver", "rocm", VRAMKIT_DEBUG="1")
    assert result.returncode != 0
    assert "Traceback" in result.stderr
