"""Unmodified programs that use cuda.core run on the simulated GPU, alone and beside vramkit."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support import run_scenario, scenarios

pytestmark = pytest.mark.sim_only


@pytest.mark.parametrize("scenario", scenarios("with_cuda_core"))
def test_cuda_core(tmp_path: Path, scenario: str) -> None:
    run_scenario("with_cuda_core", scenario, tmp_path)


@pytest.mark.parametrize("scenario", scenarios("with_cuda_core_and_vramkit"))
@pytest.mark.parametrize("found", ["by the library path", "opened by vramkit first"])
def test_cuda_core_beside_vramkit(tmp_path: Path, scenario: str, found: str) -> None:
    environment = {} if found == "by the library path" else {"LD_LIBRARY_PATH": ""}
    run_scenario("with_cuda_core_and_vramkit", scenario, tmp_path, **environment)
