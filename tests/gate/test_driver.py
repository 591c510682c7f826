"""`vramkit.driver` in a program that runs under the gate."""

from __future__ import annotations

import sys

import pytest

from .support import Programs, run_gated

pytestmark = pytest.mark.sim_only

# Opens a driver and says what came of it.
OPEN = """
import sys
from vramkit import driver
try:
    opened = driver.open(sys.argv[1])
    print(opened.kind, opened.simulated, opened.device().name != "")
except driver.DriverNotFoundError as error:
    print(error)
"""


def opened(spec: str, **variables: str) -> str:
    done = run_gated(sys.executable, "-c", OPEN, spec, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_simulated_gpu_behind_the_gate() -> None:
    assert opened("sim", VRAMKIT_DRIVER="sim") == "sim True True\n"


def test_the_simulated_gpu_beside_a_gate_before_another_driver(programs: Programs) -> None:
    assert opened("sim", VRAMKIT_GATE_DRIVER=str(programs.fake_driver)) == "sim True True\n"


def test_the_simulated_gpu_behind_the_gate_is_never_taken_for_a_card() -> None:
    assert "taken by a simulated GPU" in opened("cuda", VRAMKIT_DRIVER="sim")


def test_a_driver_that_lacks_calls_is_refused_although_the_gate_has_them(
    programs: Programs,
) -> None:
    said = opened("cuda", VRAMKIT_GATE_DRIVER=str(programs.fake_driver))
    assert f"{programs.fake_driver} lacks driver calls that vramkit needs" in said
    assert "cuDeviceGet," in said
    assert "cuMemAlloc_v2" not in said


def test_where_there_is_no_driver_the_reason_is_told() -> None:
    said = opened("cuda", VRAMKIT_GATE_DRIVER="/nowhere/libcuda.so.1")
    assert "VRAMKIT_GATE_DRIVER does not name a driver that can be opened" in said
    assert "VRAMKIT_DRIVER=sim" in said
