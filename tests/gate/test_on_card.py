"""Unmodified programs on a card, natively and under the gate: pytest --driver=cuda tests/gate.

Their results must be the same, and the trace must agree with what they say of their memory.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clients.support import scenarios

from vramkit.lab.traces import read_traces
from vramkit.record import ProcessSummary, record_program

from .support import PROGRAMS

MIB = 1 << 20
SECONDS = 240

# What else a process may take by itself: workspaces of libraries, for example.
MOST_BESIDE = 512 * MIB

# A call that the scenario must have made, as a pattern.
MADE = {
    "torch_plain": "cuMemAlloc_v2",
    "torch_expandable_segments": "cuMemCreate",
    "torch_graphs": "cuGraphLaunch",
    "cupy_default_pool": "cuMemAlloc_v2",
    "cupy_async_pool": "cuMemAlloc(FromPool)?Async",
    "jax_matrices": "cuMem(Alloc|Create).*",
    "vramkit_pool": "cuMemCreate",
}

SCENARIOS = [
    pytest.param(name, marks=pytest.mark.frameworks(name.partition("_")[0]), id=name)
    for name in scenarios("on_card", PROGRAMS)
]


def command(scenario: str) -> list[str]:
    return [sys.executable, "-c", f"import on_card; on_card.{scenario}()"]


@pytest.fixture(autouse=True)
def programs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(PROGRAMS), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.delenv("VRAMKIT_DRIVER", raising=False)


def natively(scenario: str) -> dict[str, Any]:
    done = subprocess.run(
        command(scenario), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def busiest(processes: list[ProcessSummary]) -> ProcessSummary:
    """torch.compile and JAX start helpers."""
    return max(processes, key=lambda process: process.peak_bytes)


def test_every_scenario_says_what_it_must_have_called() -> None:
    assert set(MADE) == set(scenarios("on_card", PROGRAMS))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_results_are_the_same_and_the_trace_agrees(scenario: str, tmp_path: Path) -> None:
    native = natively(scenario)
    trace = tmp_path / "trace.csv"
    recorded = record_program(command(scenario), trace, capture=True)
    assert recorded.status == 0, f"{recorded.stdout}{recorded.stderr}"
    assert recorded.stdout is not None
    gated = json.loads(recorded.stdout.splitlines()[-1])
    assert gated["result"] == native["result"]
    process = busiest(recorded.processes)
    assert process.complete
    assert process.allocations > 0
    assert process.launches > 0
    assert re.search(rf",{MADE[scenario]}$", trace.read_text(), re.MULTILINE)
    if gated["held"] is not None:
        assert gated["held"] <= process.peak_bytes <= gated["held"] + MOST_BESIDE
    assert max(read.peak_in_use for read in read_traces(trace)) == process.peak_bytes
