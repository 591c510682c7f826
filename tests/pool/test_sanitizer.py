"""Pool work without a finding, and with NVTX on, findings where there should be some.

On a card: pytest --driver=cuda tests/pool/test_sanitizer.py, with compute-sanitizer on the PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "sanitizer_check.py"
FOUND = 9  # status of a run with findings
MARKS = pytest.mark.parametrize("marks", [[], ["nvtx"]], ids=["plain", "nvtx"])


@pytest.fixture
def sanitizer(request: pytest.FixtureRequest) -> list[str]:
    """The command that runs a program under memcheck."""
    tool = shutil.which("compute-sanitizer")
    if request.config.getoption("driver") != "cuda" or tool is None:
        pytest.skip("needs a card and compute-sanitizer")
    return [tool, "--tool", "memcheck", "--nvtx", "yes", "--error-exitcode", str(FOUND)]


def outcome(command: list[str], driver: str, *work: str) -> tuple[int, str]:
    done = subprocess.run(
        [*command, sys.executable, str(PROGRAM), *work],
        env=os.environ | {"VRAMKIT_DRIVER": driver},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@MARKS
def test_the_work_itself_is_right(request: pytest.FixtureRequest, marks: list[str]) -> None:
    status, text = outcome([], request.config.getoption("driver"), "clean", *marks)
    assert (status, text) == (0, " ".join(["clean", *marks, "done\n"]))


@MARKS
def test_a_clean_program_has_no_finding(sanitizer: list[str], marks: list[str]) -> None:
    status, text = outcome([*sanitizer, "--leak-check", "full"], "cuda", "clean", *marks)
    assert status == 0, text
    assert "ERROR SUMMARY: 0 errors" in text


@pytest.mark.parametrize("mistake", ["overrun", "freed"])
def test_what_touches_free_memory_is_found_by_the_marks(sanitizer: list[str], mistake: str) -> None:
    status, text = outcome(sanitizer, "cuda", mistake)
    assert status == 0, text  # the memory is the pool's: nothing to see without them
    status, text = outcome(sanitizer, "cuda", mistake, "nvtx")
    assert status == FOUND, text
    assert "Invalid __global__ write of size 4 bytes" in text
    assert "vk_fill" in text
