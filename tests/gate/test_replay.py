"""`vramkit record`, then `vramkit replay`: what replay says, and what the program itself says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from vramkit.cli import main
from vramkit.lab.traces import Trace, read_traces
from vramkit.lab.traces.trace import Kind
from vramkit.record import record_program

from .support import PROGRAMS

pytestmark = pytest.mark.sim_only


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    monkeypatch.delenv("VRAMKIT_SIM", raising=False)
    monkeypatch.chdir(tmp_path)


def recorded(resource: str) -> tuple[dict[str, int], Trace]:
    """What the program says of itself, and its trace, which is in t.csv.gz."""
    program = [sys.executable, str(PROGRAMS / "replayed.py"), resource]
    result = record_program(program, Path("t.csv.gz"), capture=True)
    assert (result.status, result.stderr) == (0, "")
    (trace,) = read_traces(Path("t.csv.gz"))
    return json.loads(result.stdout or ""), trace


def count(trace: Trace, *kinds: Kind) -> int:
    return sum(kind in kinds for kind in trace.kinds)


def test_a_recording_has_what_a_replay_needs() -> None:
    said, trace = recorded("direct")
    assert trace.peak_in_use == said["in_use"]
    assert trace.allocations == 24
    launches = zip(trace.kinds, trace.what, strict=True)
    assert sum(what for kind, what in launches if kind == Kind.LAUNCH) == 24
    assert count(trace, Kind.RECORD) == count(trace, Kind.WAIT) == 6
    assert count(trace, Kind.STREAM_DONE) >= 7
    assert trace.times.tolist() == sorted(trace.times)


def test_the_memory_of_a_replay_is_that_of_the_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said, _ = recorded("direct")
    words = ["replay", "t.csv.gz", "--quick", "--subjects", "pool,direct", "--json"]
    assert main(words) == 0
    rows = {row["subject"]: row["values"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["direct"]["in_use"] == rows["direct"]["held"] == [said["in_use"]]
    assert rows["pool"]["in_use"] == [said["in_use"]]
    assert said["in_use"] <= rows["pool"]["held"][0] <= said["in_use"] + (64 << 20)


def test_a_pool_in_the_recording_is_what_it_took_from_the_driver() -> None:
    said, trace = recorded("pool")
    assert trace.peak_in_use == said["held"] >= said["in_use"]
