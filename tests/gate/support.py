"""Programs under the gate, without the `vramkit` command; each is a process of its own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from vramkit.launch.gate import gate_launch
from vramkit.record.lines import Converter
from vramkit.record.raw import RawRecord
from vramkit.record.run import read_all

PROGRAMS = Path(__file__).parent / "programs"
NATIVE = Path(__file__).parents[2] / "native"
SECONDS = 20


@dataclass(frozen=True)
class Programs:
    """What was built of programs/."""

    calls: Path
    allocates: Path
    fake_driver: Path


def bare_environment() -> dict[str, str]:
    """Without anything that chooses a driver."""
    ours = ("VRAMKIT_", "LD_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def run_gated(*command: str | Path, **variables: str | Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    added = {name: str(value) for name, value in variables.items()}
    with gate_launch(words, added) as launch:
        return subprocess.run(
            words,
            env=launch.environment(bare_environment()),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


@dataclass
class Recorded:
    """What one process did: its lines, without the time of each."""

    process: int
    lines: list[str]
    blocks: int
    peak: int
    threads: int
    streams: int
    complete: bool

    def starting(self, *starts: str) -> list[str]:
        return [line for line in self.lines if line.startswith(starts)]


@dataclass
class Run:
    returncode: int
    stdout: str
    stderr: str
    processes: list[Recorded] = field(default_factory=list)

    @property
    def only(self) -> Recorded:
        (process,) = self.processes
        return process


def run_recorded(folder: Path, *command: str | Path, **variables: str | Path) -> Run:
    """On the simulated GPU, where no other driver is named."""
    if "VRAMKIT_GATE_DRIVER" not in variables:
        variables = {"VRAMKIT_DRIVER": "sim", **variables}
    done = run_gated(*command, VRAMKIT_GATE_TRACE=folder, **variables)
    processes = []
    for trace in read_all(folder):
        converter = Converter(trace._replace(records=_without_times(trace.records)))
        lines = list(converter.lines())[1:]
        summary = converter.summary()
        processes.append(
            Recorded(
                trace.process,
                lines,
                summary.allocations,
                summary.peak_bytes,
                summary.threads,
                summary.streams,
                summary.complete,
            )
        )
    return Run(done.returncode, done.stdout, done.stderr, processes)


def _without_times(records: list[RawRecord]) -> list[RawRecord]:
    return [record._replace(time_ns=0) for record in records]
