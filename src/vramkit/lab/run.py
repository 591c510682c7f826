"""Runs an experiment: each subject in a process of its own, repetition after repetition.

Subjects take turns in a random order that changes with each repetition, so that a machine that
grows slower meets all of them. A process that dies or takes too long costs its row, and no other.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

import msgspec

from vramkit.lab.experiment import Case, Experiment
from vramkit.lab.result import Outcome, Report, Row
from vramkit.lab.worker import Began, Ended, Order

CASE_SECONDS = 120.0
"""The most that one repetition of a case may take, starting the process included."""
LAST_WORDS = 300
"""Characters of what a process that died wrote last."""


@dataclass(frozen=True)
class Step:
    """For a progress bar."""

    done: int
    of: int
    what: str


@dataclass
class Run:
    """A report that grows. `changed` is called after each value, `tell` before each step."""

    experiment: Experiment
    report: Report
    driver: str
    subjects: list[str]
    cases: list[Case]
    tell: Callable[[Step], None] = lambda step: None
    changed: Callable[[Report], None] = lambda report: None
    case_seconds: float = CASE_SECONDS
    deadline: float | None = None
    """time.monotonic() at which the run ends early."""
    _rows: dict[tuple[str, Case], Row] = field(default_factory=dict)
    _done: int = 0

    def run(self) -> Report:
        """Until all is measured; an interrupt (Ctrl-C) ends it, and the report says so."""
        for subject in self.subjects:
            for case in self.cases:
                row = Row(case.workload, subject, case.arm)
                self._rows[subject, case] = row
                self.report.rows.append(row)
        chance = random.Random(self.report.seed)
        try:
            for repetition in range(self.report.repetitions):
                order = list(self.subjects)
                chance.shuffle(order)
                for subject in order:
                    self._measure(subject, repetition)
        except KeyboardInterrupt:
            self.report.stopped = "interrupted"
        except _TimeIsUp:
            self.report.stopped = "the time limit was reached"
        self.changed(self.report)
        return self.report

    def _measure(self, subject: str, repetition: int) -> None:
        """All cases of one subject; what a dead process left goes to the next one."""
        left = [case for case in self.cases if self._wanted(subject, case)]
        self._done += len(self.cases) - len(left)
        while left:
            ended = self._process(subject, repetition, left)
            left = left[ended:]

    def _wanted(self, subject: str, case: Case) -> bool:
        return self._rows[subject, case].outcome in ("not run", "measured")

    def _process(self, subject: str, repetition: int, cases: list[Case]) -> int:
        """Returns how many of the cases are dealt with; at least one."""
        order = Order(
            self.experiment.name,
            subject,
            cases,
            self.driver,
            self.report.seed,
            repetition,
            dict(self.report.settings),
        )
        with tempfile.TemporaryFile() as errors, _Child(order, errors) as child:
            current, ended = 0, 0
            self._say(subject, cases[0], repetition)
            while ended < len(cases):
                line = child.line(self._patience())
                if line is None:
                    self._patience()  # raises where it is the whole run that took too long
                    why = f"no result after {self.case_seconds:.0f} s"
                    self._take(subject, cases[current], "timed out", why)
                    return current + 1
                if not line:
                    child.kill()
                    self._take(subject, cases[current], "failed", child.last_words())
                    return current + 1
                match msgspec.json.decode(line, type=Began | Ended):
                    case Began(case=current):
                        self._say(subject, cases[current], repetition)
                    case Ended(case=index, outcome=outcome, values=values, why=why):
                        self._take(subject, cases[index], outcome, why, values)
                        ended = index + 1
            return ended

    def _patience(self) -> float:
        if self.deadline is None:
            return self.case_seconds
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _TimeIsUp
        return min(self.case_seconds, left)

    def _say(self, subject: str, case: Case, repetition: int) -> None:
        total = len(self.subjects) * len(self.cases) * self.report.repetitions
        arm = f", {case.arm}" if case.arm else ""
        what = f"{case.workload}{arm}: {subject}, {repetition + 1} of {self.report.repetitions}"
        self.tell(Step(self._done, total, what))

    def _take(
        self,
        subject: str,
        case: Case,
        outcome: Outcome,
        why: str,
        values: dict[str, float] | None = None,
    ) -> None:
        row = self._rows[subject, case]
        row.outcome, row.why = outcome, why
        for name, value in (values or {}).items():
            row.values.setdefault(name, []).append(value)
        self._done += 1
        self.changed(self.report)


class _TimeIsUp(Exception):
    pass


class _Child:
    """A worker in a process group of its own: Ctrl-C reaches it only through kill()."""

    def __init__(self, order: Order, errors: IO[bytes]) -> None:
        self._errors = errors
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vramkit.lab.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._output = self._process.stdout
        self._rest = b""
        try:
            self._process.stdin.write(msgspec.json.encode(order))
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it died at once; line() says so

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *ending: object) -> None:
        self.kill()
        self._output.close()

    def line(self, seconds: float) -> bytes | None:
        """The next line; empty: the process has ended; None: the time is up."""
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, end - time.monotonic())):
                    return None
                read = os.read(self._output.fileno(), 1 << 16)
                if not read:
                    return b""
                self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_words(self) -> str:
        """How it ended, and the last line that it wrote."""
        status = self._process.returncode
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {last[-LAST_WORDS:]}" if last else how
