"""Unmodified programs that use cuda-bindings run on the simulated GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support import run_scenario, scenarios

pytestmark = pytest.mark.sim_only


@pytest.mark.parametrize("scenario", scenarios("with_cuda_bindings"))
def test_cuda_bindings(tmp_path: Path, scenario: str) -> None:
    run_scenario("with_cuda_bindings", scenario, tmp_path)


def test_cuda_bindings_with_per_thread_default_streams(tmp_path: Path) -> None:
    run_scenario(
        "with_cuda_bindings",
        "copies_and_fills",
        tmp_path,
        CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM="1",
    )
