"""Real frameworks on a card: pytest --driver=cuda tests/integrations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from clients.support import scenarios

PROGRAMS = Path(__file__).parent / "programs"
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "frameworks.py"
SECONDS = 120

CASES = [
    pytest.param(name, marks=pytest.mark.frameworks(name.partition("/")[0]), id=name)
    for name in (
        "torch/plain",
        "torch/streams",
        "torch/graph",
        "torch/compile",
        "torch/mem_pool",
        "cupy/pipeline",
        "rmm/buffers",
    )
]
SCENARIOS = [
    pytest.param(name, marks=pytest.mark.frameworks(name.partition("_")[0]), id=name)
    for name in scenarios("on_card", PROGRAMS)
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_framework(scenario: str) -> None:
    paths = [str(PROGRAMS), os.environ.get("PYTHONPATH")]
    ended = subprocess.run(
        [sys.executable, "-c", f"import on_card; on_card.{scenario}()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("case", CASES)
def test_results_are_equal_with_and_without_vramkit(case: str, tmp_path: Path) -> None:
    output = tmp_path / "rows.json"
    command = [sys.executable, str(BENCHMARK), "--json", str(output), "--only", case]
    subprocess.run(
        [*command, "--repetitions", "2"], timeout=2 * SECONDS, check=False, capture_output=True
    )
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert [row["error"] for row in rows] == [""] * len(rows)
    theirs, *others = rows
    assert "vramkit" in [row["allocator"] for row in others]
    for row in others:
        assert row["equal"], (theirs["allocator"], row["allocator"], row["difference"])
