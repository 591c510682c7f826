"""Runs an experiment: each subject in a process of its own, repetition after repetition.

Subjects take turns in a random order that changes with each repetition, so that a machine that
grows slower meets all of them. A process that dies or takes too long costs its row, and no other.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import msgspec

from vramkit.lab.child import Child
from vramkit.lab.experiment import Case, Experiment
from vramkit.lab.result import Outcome, Report, Row
from vramkit.lab.worker import Began, Ended, Order

CASE_SECONDS = 120.0
"""The most that one repetition of a case may take; starting the process has as much again."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Step:
    """For a progress bar."""

    done: int
    of: int
    what: str
    seconds_left: float | None
    """Estimated from what took how long so far; None at first."""


@dataclass
class Run:
    """A report that grows. `changed` is called after each value, `tell` before each step."""

    experiment: Experiment
    name: str
    """As catalog.find() takes it."""
    report: Report
    driver: str
    device: int
    subjects: Mapping[str, str]
    """With the reason for each that cannot take part, as Experiment.subjects() says them."""
    cases: list[Case]
    tell: Callable[[Step], None] = lambda step: None
    changed: Callable[[Report], None] = lambda report: None
    case_seconds: float = CASE_SECONDS
    seconds: float | None = None
    """After which the run ends early."""
    clock: Callable[[], float] = time.monotonic
    signals: list[int] = field(default_factory=list)
    """Those that asked the run to end."""
    _rows: dict[tuple[str, Case], Row] = field(default_factory=dict)
    _left: dict[tuple[str, Case], int] = field(default_factory=dict)
    """Repetitions still to be measured."""
    _took: dict[tuple[str, Case], float] = field(default_factory=dict)
    """Seconds of the last repetition."""
    _total: int = 0
    _deadline: float | None = None

    def run(self) -> Report:
        """Until all is measured; a signal (Ctrl-C) ends it, and the report says so."""
        self._make_rows()
        present = [name for name, missing in self.subjects.items() if not missing]
        chance = random.Random(self.report.seed)
        if self.seconds is not None:
            self._deadline = self.clock() + self.seconds
        # For whoever reads the file of a run that was killed.
        self.report.stopped = "the run has not ended"
        try:
            with self._signals_end_it():
                for repetition in range(self.report.repetitions):
                    order = list(present)
                    chance.shuffle(order)
                    for subject in order:
                        self._measure(subject, repetition)
            self.report.stopped = ""
        except _Stopped as why:
            self.report.stopped = str(why)
        self.changed(self.report)
        return self.report

    def _make_rows(self) -> None:
        for subject, missing in self.subjects.items():
            for case in self.cases:
                row = Row(case.workload, subject, case.arm)
                if missing:
                    row.outcome, row.why = "not here", missing
                self._rows[subject, case] = row
                self._left[subject, case] = 0 if missing else self.report.repetitions
                self.report.rows.append(row)
        self._total = sum(self._left.values())

    @contextmanager
    def _signals_end_it(self) -> Iterator[None]:
        """Looked at between answers only, so that a row is never half written."""

        def note(number: int, frame: FrameType | None) -> None:
            self.signals.append(number)

        before: dict[signal.Signals, object] = {}
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)  # type: ignore[arg-type]

    def _measure(self, subject: str, repetition: int) -> None:
        """All cases of one subject; what a dead process left goes to the next one."""
        cases = [case for case in self.cases if self._left[subject, case]]
        while cases:
            cases = cases[self._process(subject, repetition, cases) :]

    def _process(self, subject: str, repetition: int, cases: list[Case]) -> int:
        """Returns how many of the cases are dealt with; at least one."""
        self._check_time()
        self._say(subject, cases[0], repetition)
        order = Order(
            self.name,
            subject,
            cases,
            self.driver,
            self.device,
            self.report.seed,
            repetition,
            dict(self.report.settings),
            os.getpid(),
        )
        since = self.clock()
        child, opened, current, asked = Child(order), False, 0, True
        try:
            while True:
                answer = self._answer(child, since)
                now = self.clock()
                match answer:
                    case Began():
                        opened = True
                        self._say(subject, cases[current], repetition)
                    case Ended(outcome=outcome):
                        self._took[subject, cases[current]] = now - since
                        self._take(subject, cases[current], answer)
                        current += 1
                        goes_on = outcome in ("measured", "not here")
                        if current == len(cases) or not goes_on:
                            asked = False
                            return current
                        since = now
        except _Lost as lost:
            child.end(asked=True, hurry=self._in_a_hurry)
            # One that could not even open the driver would not do so for the next case either.
            failed = cases[current : current + 1] if opened else cases
            for case in failed:
                why = lost.why or child.last_words()
                self._take(subject, case, Ended(current, lost.outcome, why=why))
            return current + len(failed)
        finally:
            child.end(asked=asked, hurry=self._in_a_hurry)

    def _answer(self, child: Child, since: float) -> Began | Ended:
        """Raises _Lost where there will be none, and _Stopped."""
        while True:
            self._check_time()
            try:
                found = child.look()
            except msgspec.DecodeError as error:
                raise _Lost("failed", f"answered what cannot be read: {error}") from error
            if found == "the end":
                raise _Lost("failed", "")
            if found != "nothing yet":
                return found
            if self.clock() - since > self.case_seconds:
                raise _Lost("timed out", f"no result after {self.case_seconds:g} s")

    def _check_time(self) -> None:
        if self.signals:
            name = signal.Signals(self.signals[0]).name
            raise _Stopped("interrupted" if name == "SIGINT" else f"ended by {name}")
        if self._deadline is not None and self.clock() > self._deadline:
            raise _Stopped(f"the time limit of {self.seconds:g} s was reached")

    def _in_a_hurry(self) -> bool:
        return len(self.signals) > 1

    def _say(self, subject: str, case: Case, repetition: int) -> None:
        arm = f", {case.arm}" if case.arm else ""
        what = f"{case.workload}{arm}: {subject}, {repetition + 1} of {self.report.repetitions}"
        done = self._total - sum(self._left.values())
        self.tell(Step(done, self._total, what, self._seconds_left()))

    def _seconds_left(self) -> float | None:
        """One that was not measured yet is taken to last as long as the others of its case."""
        if not self._took:
            return None
        everywhere = statistics.fmean(self._took.values())
        by_case: dict[Case, float] = {}
        for case in self.cases:
            known = [seconds for (_, its), seconds in self._took.items() if its == case]
            by_case[case] = statistics.fmean(known) if known else everywhere
        return sum(
            left * self._took.get(key, by_case[key[1]]) for key, left in self._left.items() if left
        )

    def _take(self, subject: str, case: Case, ended: Ended) -> None:
        row = self._rows[subject, case]
        row.outcome, row.why = ended.outcome, ended.why
        for name, value in ended.values.items():
            row.values.setdefault(name, []).append(value)
        if ended.outcome == "measured":
            row.series, row.drawings = ended.series, ended.drawings
        left = self._left[subject, case] - 1
        self._left[subject, case] = left if ended.outcome == "measured" else 0
        self.changed(self.report)


@dataclass
class _Lost(Exception):
    """The process will give no answer. `why` is empty where its last words say it."""

    outcome: Outcome
    why: str


class _Stopped(Exception):
    """The whole run ends early; says why."""
