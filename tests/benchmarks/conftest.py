"""Lets tests import the benchmarks."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_in_reach(monkeypatch: pytest.MonkeyPatch):
    """The benchmarks are programs, not a package: they find each other in their own folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for program in BENCHMARKS.glob("*.py"):
        sys.modules.pop(program.stem, None)
