"""Unmodified programs on cuda-bindings and cuda.core run under the gate as without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from clients.support import run_scenario, scenarios

from vramkit.launch.gate import gate_library
from vramkit.record.run import read_all

pytestmark = pytest.mark.sim_only

CASES = [
    pytest.param(program, scenario, id=f"{program}-{scenario}")
    for program in ("with_cuda_bindings", "with_cuda_core_and_vramkit")
    for scenario in scenarios(program)
]


@pytest.mark.parametrize(("program", "scenario"), CASES)
def test_under_the_gate(program: str, scenario: str, tmp_path: Path) -> None:
    """The scenario itself checks its results, and the checker of the simulated GPU its order."""
    trace = tmp_path / "trace"
    trace.mkdir()
    run_scenario(
        program,
        scenario,
        tmp_path,
        LD_PRELOAD=str(gate_library()),
        VRAMKIT_DRIVER="sim",
        VRAMKIT_GATE_TRACE=str(trace),
    )
    (recorded,) = read_all(trace)
    assert recorded.records
