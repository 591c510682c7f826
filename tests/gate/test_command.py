"""`vramkit record`: the command, and what it writes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vramkit.cli import main
from vramkit.driver.opening import sim_folder
from vramkit.lab.traces import TraceError, read_traces
from vramkit.lab.traces.trace import Kind
from vramkit.launch import LaunchError
from vramkit.launch import gate as launch_gate
from vramkit.record import record_program
from vramkit.record.raw import RawTrace
from vramkit.record.run import write_trace

from .support import PROGRAMS, Programs

pytestmark = pytest.mark.sim_only


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    monkeypatch.delenv("VRAMKIT_SIM", raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_program_on_vramkit(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    program = [sys.executable, str(PROGRAMS / "on_vramkit.py")]
    result = record_program(program, trace, capture=True)
    assert (result.status, result.stdout, result.stderr) == (0, "done\n", "")
    (process,) = result.processes
    assert process.driver == str(sim_folder() / "libcuda.so.1")
    assert (process.launches, process.failed, process.unknown_frees) == (3, 0, 0)
    assert process.bytes_at_end == 0
    calls = [line.rpartition(",")[2] for line in trace.read_text().splitlines() if line[0] == "+"]
    assert "cuMemCreate" in calls
    assert calls[-2:] == ["cuMemAlloc_v2", "cuMemAllocFromPoolAsync"]
    assert "launch,3,1,0," in trace.read_text()
    (read,) = read_traces(trace)
    assert read.name == "trace"
    assert read.sizes[-2:].tolist() == [12345, 54321]
    blocks = [kind for kind in read.kinds if kind in (Kind.ALLOCATE, Kind.FREE)]
    assert len(blocks) == process.allocations + process.frees
    assert read.peak_in_use == process.peak_bytes


def test_status_and_output_are_the_programs_and_a_summary_follows(
    programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", "-o", "t.csv.gz", "--", str(programs.allocates), "pairs"]) == 5
    captured = capfd.readouterr()
    assert captured.out == "out\n"
    first, second = captured.err.splitlines()
    assert first.startswith("errvramkit record: process ")
    assert "3 allocations, at most 1 MiB at a time, 1 MiB at the end; 0 launches" in first
    assert second == "vramkit record: written to t.csv.gz"
    assert gzip.decompress(Path("t.csv.gz").read_bytes()).startswith(b"# vramkit trace 2\n@")
    assert sorted(path.name for path in Path().iterdir()) == ["t.csv.gz"]


def test_the_summary_as_json(programs: Programs, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--json", "--", str(programs.allocates), "killed"]) == 137
    document = json.loads(capfd.readouterr().out)
    assert (document["status"], document["signal"]) == (137, "SIGKILL")
    assert document["trace"] == str(Path("vramkit-trace.csv.gz").absolute())
    (process,) = document["processes"]
    assert (process["allocations"], process["frees"], process["complete"]) == (5000, 5000, True)
    (trace,) = read_traces(Path("vramkit-trace.csv.gz"))
    assert (len(trace), trace.allocations) == (10000, 5000)


def test_the_trace_can_go_to_a_device(programs: Programs) -> None:
    result = record_program([str(programs.allocates), "streams"], Path("/dev/null"))
    assert [process.allocations for process in result.processes] == [2]
    assert not list(Path("/dev").glob(".vramkit-record-*"))


def test_each_process_is_a_trace(programs: Programs) -> None:
    result = record_program([str(programs.allocates), "fork_first"], Path("t.csv"))
    names = [f"t process {process.process} device 0" for process in result.processes]
    traces = read_traces(Path("t.csv"))
    assert [trace.name for trace in traces] == names
    assert [len(trace.sizes) for trace in traces] == [p.allocations for p in result.processes]


def test_a_program_without_cuda(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--", "true"]) == 0
    assert "nothing was recorded" in capfd.readouterr().err
    with pytest.raises(TraceError, match="nothing was allocated"):
        read_traces(Path("vramkit-trace.csv.gz"))


def test_a_trace_that_ends_early_is_said_to(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cut_off = RawTrace(7, 1, 0, "driver", ["program"], True, [])
    monkeypatch.setattr("vramkit.record.run.read_all", lambda folder: [cut_off])
    assert main(["record", "--", "true"]) == 0
    assert "process 7: the disk was full, and its trace ends early" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "record needs a program"),
        (["--nonsense", "true"], 2, "--nonsense"),
        (["-o", "nowhere/t.csv", "--", "true"], 2, "there is no folder nowhere"),
        (["--", "no-such-program"], 127, "no-such-program: not found"),
    ],
)
def test_wrong_usage(
    words: list[str], status: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", *words]) == status
    assert said in capfd.readouterr().err


def test_a_missing_gate_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch_gate, "gate_library", lambda: tmp_path / "libcuda.so.1")
    with pytest.raises(LaunchError, match="reinstall vramkit"):
        record_program(["true"], tmp_path / "t.csv")


def test_a_library_in_a_folder_with_a_space_is_preloaded_by_its_link(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spaced = tmp_path / "a folder" / "libcuda.so.1"
    spaced.parent.mkdir()
    spaced.symlink_to(launch_gate.gate_library())
    monkeypatch.setattr(launch_gate, "gate_library", lambda: spaced)
    with launch_gate.gate_launch(["true"], {}) as launch:
        assert launch.preload is not None
        assert " " not in str(launch.preload)
        done = subprocess.run(["true"], env=launch.environment(os.environ), capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("line", "said"),
    [("-5,0,0,0,call", "block 5 is freed"), ("+0,1", "values"), ("+0,x,0,0,0,0,c", "'x'")],
)
def test_damaged_traces_are_refused(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "t.csv"
    write_trace([], path)
    path.write_text(path.read_text() + "@1,0,program\n" + line + "\n")
    with pytest.raises(TraceError, match=f"line 3: .*{said}"):
        read_traces(path)
