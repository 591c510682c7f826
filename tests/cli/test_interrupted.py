"""Ctrl-C in the commands that measure, record and advise: real processes, with their real work."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from lab.runs import is_running

from vramkit.lab.catalog import EXPERIMENTS
from vramkit.lab.result import load

from .support import SETTINGS

pytestmark = pytest.mark.sim_only

DATA = Path(__file__).parents[1] / "data"
SECONDS = 60.0
MARK = "VRAMKIT_TEST_MARK"
ALLOCATES = """
import time, vramkit
with vramkit.driver.open().device().alloc(1 << 20):
    print("ready", flush=True)
    time.sleep(600)
"""


class Running:
    """A command in a folder of its own; all that it starts can be known by its environment."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.mark = f"{folder} {time.monotonic_ns()}"
        kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vramkit.cli", *arguments],
            cwd=folder,
            env={
                **kept,
                MARK: self.mark,
                "VRAMKIT_DRIVER": "sim",
                "TMPDIR": str(self.temporary),
                "COLUMNS": "100",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, so: Callable[[], bool]) -> None:
        limit = time.monotonic() + SECONDS
        while not so():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < limit
            time.sleep(0.001)

    def interrupted(self) -> tuple[int, str, str]:
        """Status, stdout and stderr after a Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        out, errors = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, errors

    def left(self) -> list[int]:
        """Processes that it has left; given a moment to end."""
        limit = time.monotonic() + 20
        while found := [pid for pid in _marked(self.mark) if is_running(pid)]:
            if time.monotonic() > limit:
                break
            time.sleep(0.01)
        return found

    def end(self) -> None:
        for pid in _marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


def _marked(mark: str) -> Iterator[int]:
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def one(*arguments: str) -> Running:
        started.append(Running(tmp_path, *arguments))
        return started[-1]

    yield one
    for each in started:
        each.end()


def has_figures(path: Path) -> bool:
    """The file is replaced in one step: what is there is whole."""
    return path.exists() and any(row.values for row in load(path).rows)


MEASURE = {name: ("lab", name) for name in EXPERIMENTS}
MEASURE["replay"] = ("replay", str(DATA / "lstm_text.csv.gz"))


@pytest.mark.parametrize("name", MEASURE)
def test_what_was_measured_is_kept_and_said(
    name: str, start: Callable[..., Running], tmp_path: Path
) -> None:
    result = tmp_path / "r.json"
    options = ("--repetitions", "1000", "--html", "r.html", "--output", "r.json")
    running = start(*MEASURE[name], *options)
    running.until(lambda: has_figures(result))
    status, out, errors = running.interrupted()
    assert status == 130, errors
    found = load(result)
    measured = sum(bool(row.values) for row in found.rows)
    assert found.stopped == "interrupted" and measured > 0
    assert f": interrupted; {measured} of {len(found.rows)} rows have figures\n" in errors
    assert "the result is in r.json" in errors and "the report is in r.html" in errors
    assert "This run ended early: interrupted." in " ".join(out.split())
    assert "This run ended early: interrupted." in (tmp_path / "r.html").read_text()
    assert running.left() == []
    assert list(running.temporary.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"r.json", "r.html", "temporary"}


def test_with_json_what_was_measured_is_on_stdout(start: Callable[..., Running]) -> None:
    running = start(*MEASURE["replay"], "--repetitions", "1000", "--json")
    assert running.process.stderr is not None
    running.process.stderr.readline()  # the card
    running.process.stderr.readline()  # the first step
    status, out, errors = running.interrupted()
    document = json.loads(out)
    assert (status, document["stopped"]) == (130, "interrupted"), errors
    assert running.left() == []


def test_a_recording_that_is_interrupted_keeps_its_events(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    program = (sys.executable, "-c", ALLOCATES)
    running = start("record", "-o", "t.csv.gz", "--json", "--", *program)
    assert running.process.stdout is not None
    assert running.process.stdout.readline() == "ready\n"
    status, out, _ = running.interrupted()
    assert status == 130
    (process,) = json.loads(out)["processes"]
    assert (process["allocations"], process["peak_bytes"]) == (1, 1 << 20)
    assert b"\n+0,1048576," in gzip.decompress((tmp_path / "t.csv.gz").read_bytes())
    assert running.left() == []
    assert list(running.temporary.iterdir()) == []


def test_advice_that_is_interrupted_leaves_nothing(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    trace = DATA / "llama_serve.csv.gz"
    running = start("advise", str(trace), "--html", "a.html")
    folder = Path(f"/proc/{running.process.pid}/fd")

    def is_reading() -> bool:
        with suppress(OSError):
            return str(trace) in [os.readlink(path) for path in folder.iterdir()]
        return False

    running.until(is_reading)
    status, out, errors = running.interrupted()
    assert (status, out) == (130, "") and "Traceback" not in errors
    assert running.left() == []
    assert {path.name for path in tmp_path.iterdir()} == {"temporary"}
    assert list(running.temporary.iterdir()) == []
