"""Buffers of cuda.core from a vramkit pool, each scenario in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from clients.support import run_scenario, scenarios

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = "with_cuda_core_resource"


@pytest.mark.sim_only
@pytest.mark.parametrize("scenario", scenarios(PROGRAM, PROGRAMS))
def test_cuda_core_resource(tmp_path: Path, scenario: str) -> None:
    run_scenario(PROGRAM, scenario, tmp_path, PROGRAMS, VRAMKIT_DRIVER="sim")
