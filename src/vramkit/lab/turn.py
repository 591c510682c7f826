"""A subject's turn in a repetition: its cases in a process, or in several where one dies.

A process that dies or takes too long costs its row, and no other.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from vramkit.lab.experiment import Case
from vramkit.lab.result import Outcome
from vramkit.lab.settings import Value
from vramkit.lab.worker import Answer, Began, Ended, Order
from vramkit.sweep.child import LOOK_SECONDS, Child
from vramkit.sweep.stopping import Stopped

CASE_SECONDS = 120.0
"""The most that one repetition of a case may take; starting the process has as much again."""
_ANSWERS: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


class Setup(msgspec.Struct, frozen=True):
    """What all turns of a run have in common."""

    experiment: str
    """As catalog.find() takes it."""
    driver: str
    device: int
    seed: int
    settings: dict[str, Value]
    case_seconds: float = CASE_SECONDS


class Take(Protocol):
    """Told how a case ended, and how long it took where it came to its end."""

    def __call__(self, case: Case, ended: Ended, seconds: float | None, /) -> None: ...


def start(order: Order) -> Child[Answer]:
    return Child(["-m", "vramkit.lab.worker"], _ANSWERS, given=msgspec.json.encode(order))


@dataclass
class Turn:
    """`say` is called before each case, `check` now and then: it ends the turn by raising
    Stopped."""

    setup: Setup
    subject: str
    repetition: int
    take: Take
    say: Callable[[Case], None] = lambda case: None
    check: Callable[[], None] = lambda: None
    hurry: Callable[[], bool] = lambda: False
    """Whether a process that is asked to end is killed at once."""
    clock: Callable[[], float] = time.monotonic

    def measure(self, cases: list[Case]) -> None:
        """What a dead process left goes to the next one."""
        while cases:
            cases = cases[self._process(cases) :]

    def _process(self, cases: list[Case]) -> int:
        """Returns how many of the cases are dealt with; at least one."""
        self.check()
        self.say(cases[0])
        order = Order(
            self.setup.experiment,
            self.subject,
            cases,
            self.setup.driver,
            self.setup.device,
            self.setup.seed,
            self.repetition,
            self.setup.settings,
            os.getpid(),
        )
        since = self.clock()
        child, opened, current, asked = start(order), False, 0, True
        try:
            while True:
                answer = self._answer(child, since)
                now = self.clock()
                match answer:
                    case Began():
                        opened = True
                        self.say(cases[current])
                    case Ended(outcome=outcome):
                        self.take(cases[current], answer, now - since)
                        current += 1
                        goes_on = outcome in ("measured", "not here")
                        if current == len(cases) or not goes_on:
                            asked = False
                            return current
                        since = now
        except _Lost as lost:
            # Where its answers have ended it is about to end by itself, and its last words say why.
            child.end(asked=bool(lost.why), hurry=self.hurry)
            # One that could not even open the driver would not do so for the next case either.
            failed = cases[current : current + 1] if opened else cases
            for case in failed:
                why = lost.why or child.last_words()
                self.take(case, Ended(current, lost.outcome, why=why), None)
            return current + len(failed)
        finally:
            child.end(asked=asked, hurry=self.hurry)

    def _answer(self, child: Child[Answer], since: float) -> Answer:
        """Raises _Lost where there will be none, and Stopped; what has been answered by then counts
        first."""
        while True:
            stopped = None
            try:
                self.check()
            except Stopped as error:
                stopped = error
            try:
                found = child.look(0 if stopped else LOOK_SECONDS)
            except msgspec.DecodeError as error:
                raise _Lost("failed", f"answered what cannot be read: {error}") from error
            if stopped is not None and isinstance(found, str):
                raise stopped
            if found == "the end":
                raise _Lost("failed", "")
            if found != "nothing yet":
                return found
            if self.clock() - since > self.setup.case_seconds:
                raise _Lost("timed out", f"no result after {self.setup.case_seconds:g} s")


@dataclass
class _Lost(Exception):
    """The process will give no answer. `why` is empty where its last words say it."""

    outcome: Outcome
    why: str


def orders(seed: int, subjects: list[str], repetitions: int) -> list[list[str]]:
    """Who comes after whom in each repetition: random, and decided by the seed."""
    chance = random.Random(seed)
    found = []
    for _ in range(repetitions):
        order = list(subjects)
        chance.shuffle(order)
        found.append(order)
    return found
