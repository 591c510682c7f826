"""idle() and lease(): by the library of the program if it is loaded, else nothing happens.

With a real daemon and a turn that lasts longer than any test: who waits gets the card only from a
program that is idle.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vramkit.share import idle, lease

from .machine import Machine, Started, until

SOURCE = """
#include <stdio.h>
int vramkitShareIdle(void) { puts("idle"); fflush(stdout); return 1; }
int vramkitShareLease(int begin) { printf("lease %d\\n", begin); fflush(stdout); return begin; }
"""
PROGRAM = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
from vramkit.share import idle, lease
print(idle(), flush=True)
try:
    with lease() as got:
        print(got, flush=True)
        raise KeyError
except KeyError:
    pass
"""


def test_without_the_library_nothing_happens() -> None:
    assert idle() is False
    with lease() as got:
        assert got is False


def test_the_loaded_library_is_told(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "share.c", tmp_path / "libvramkit_share.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, library], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["idle", "True", "lease 1", "True", "lease 0"], done.stderr


QUIET = str(Path(__file__).parent / "programs" / "quiet.py")


def start_quiet(machine: Machine, kind: str, mebibytes: int) -> Started:
    return machine.start_command([sys.executable, QUIET, kind, str(mebibytes)])


def says(program: Started, text: str) -> None:
    """In the end, and nothing else."""
    until(lambda: program.output.endswith("\n"), lambda: program.log)
    assert program.output == f"{text}\n"


@pytest.mark.sim_only
def test_who_says_that_it_is_idle_leaves_the_card(machine: Machine) -> None:
    """It works too often to be found idle."""
    machine.start_daemon(quantum="10min")
    says_idle = start_quiet(machine, "says_idle", 40)
    says(says_idle, "idle True")
    says(start_quiet(machine, "quiet", 40), "quiet")


@pytest.mark.sim_only
def test_who_is_quiet_within_a_lease_is_not_taken_for_idle(machine: Machine) -> None:
    """While another one is that was quiet for less. After the lease it is idle too."""
    machine.start_daemon(quantum="10min")
    leased = start_quiet(machine, "leased", 40)
    says(leased, "leased True False")
    quiet = start_quiet(machine, "quiet", 8)
    machine.until(quiet, lambda status: status.state == "idle")
    waits = start_quiet(machine, "quiet", 40)
    machine.until(waits, lambda status: status.state == "waiting")
    found = machine.find(leased)
    assert found is not None
    assert (found.state, found.turns) == ("running", 1)
    assert waits.output == ""
    leased.process.send_signal(signal.SIGUSR1)
    says(waits, "quiet")
