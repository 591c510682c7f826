"""Asks the process that runs groups of ranks (programs/ranks.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent


class Ranks:
    """Runs scenarios of programs/rank_scenarios.py, each in as many processes as it has ranks."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, scenario: str, size: int, **settings: Any) -> list[Any]:
        """What the ranks answered: "ok" with the result, "error" and "message", or "ended"."""
        assert self._process.stdin is not None and self._process.stdout is not None
        asked = {"name": scenario, "size": size, "settings": settings}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answers: list[Any] = json.loads(self._process.stdout.readline())
        return answers

    def results(self, scenario: str, size: int, **settings: Any) -> list[Any]:
        """Of a scenario in which no rank fails."""
        answers = self.run(scenario, size, **settings)
        for answer in answers:
            assert "ok" in answer, answer.get("trace", answer)
        return [answer["ok"] for answer in answers]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    environment = os.environ | {"PYTHONPATH": str(TESTS), "VRAMKIT_DRIVER": "sim"}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "weights.programs.ranks"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Ranks(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=30)
