"""Runs an experiment: each subject in a process of its own, repetition after repetition.

Subjects take turns in a random order that changes with each repetition, so that a machine that
grows slower meets all of them. On a cluster a repetition, with all its turns, is what a card gets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vramkit.lab.experiment import Case, Experiment
from vramkit.lab.remote import Elsewhere, note_site, repetitions, unmeasured
from vramkit.lab.result import Report
from vramkit.lab.rows import Rows
from vramkit.lab.turn import CASE_SECONDS, Setup, Turn, orders
from vramkit.lab.worker import Ended
from vramkit.report.units import count_text
from vramkit.sweep import Again, PlaceError, Step, Stopped, Stopping, Task


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
    elsewhere: Elsewhere | None = None
    """Where repetitions are measured; None: one after the other on this machine."""
    again: Again = field(default_factory=Again)
    """Repetitions that were lost with a card elsewhere, and measured again."""
    continued: str = ""
    """The date, where the report is one of an earlier run: it is noted with the first value."""
    problem: bool = False
    """It ended early because nothing more could be measured elsewhere."""

    def run(self) -> Report:
        """Until all is measured; a signal (Ctrl-C) ends it, and the report says so."""
        self._rows = Rows(self.report, self.subjects, self.cases)
        self._stopping = Stopping(self.seconds, self.clock, self.signals)
        present = [name for name, missing in self.subjects.items() if not missing]
        turns = orders(self.report.seed, present, self.report.repetitions)
        setup = Setup(
            self.name,
            self.driver,
            self.device,
            self.report.seed,
            dict(self.report.settings),
            self.case_seconds,
        )
        # For whoever reads the file of a run that was killed.
        self.report.stopped = "the run has not ended"
        try:
            with self._stopping.watched():
                if self.elsewhere is None:
                    self._here(setup, turns)
                else:
                    self._there(setup, turns, self.elsewhere)
            unfinished = any(row.lacks(self.report.repetitions) for row in self.report.rows)
            self.report.stopped = "not all of its rows were continued" if unfinished else ""
        except (Stopped, PlaceError) as why:
            self.problem = isinstance(why, PlaceError)
            self.report.stopped = str(why)
        self.changed(self.report)
        return self.report

    def _here(self, setup: Setup, turns: list[list[str]]) -> None:
        for repetition, order in enumerate(turns):
            for subject in order:
                self._turn(setup, subject, repetition)

    def _turn(self, setup: Setup, subject: str, repetition: int) -> None:
        def say(case: Case) -> None:
            arm = f", {case.arm}" if case.arm else ""
            what = f"{case.workload}{arm}: {subject}, {repetition + 1} of {self.report.repetitions}"
            self._say(what)

        def take(case: Case, ended: Ended, seconds: float | None) -> None:
            if self.continued:
                self.report.continued.append(self.continued)
                self.continued = ""
            self._rows.take(subject, case, repetition, ended, seconds)
            self.changed(self.report)

        turn = Turn(
            setup,
            subject,
            repetition,
            take,
            say,
            self._stopping.check,
            self._stopping.in_a_hurry,
            self.clock,
        )
        turn.measure(self._rows.left(subject, repetition))

    def _there(self, setup: Setup, turns: list[list[str]], elsewhere: Elsewhere) -> None:
        name = "repetition {} of " + str(self.report.repetitions)
        cards = elsewhere.place.workers()
        self._say(f"waiting for {count_text(cards, 'card')}", cards)

        def again(task: Task, why: str) -> None:
            self.again(task, why)
            self._say(f"{name.format(task.number + 1)} is measured again: {why}", cards)

        for number, found in repetitions(
            setup,
            self.cases,
            turns,
            elsewhere,
            self._stopping.check,
            self._stopping.in_a_hurry,
            again,
        ):
            if isinstance(found, str):
                measured, where = unmeasured(found, self.cases, turns[number]), "nowhere"
            else:
                measured, where = found.measurements, found.site.node
                note_site(self.report.sites, found.site, number)
            for each in measured:
                self._rows.take(each.subject, each.case, number, each.ended, each.seconds)
            self.changed(self.report)
            self._say(f"{name.format(number + 1)} on {where}", cards)

    def _say(self, what: str, at_once: int = 1) -> None:
        rows, left = self._rows, self._rows.seconds_left()
        left = None if left is None else left / at_once
        self.tell(Step(rows.done, rows.total, what, left))
