"""What an experiment is.

An experiment
1. asks one question of several subjects (allocators, policies, modes): each of its cases is
   measured for each subject, in a process of its own for each subject and repetition;
2. is one object in catalog.EXPERIMENTS, and does no work when its module is imported;
3. measures a case as a pure function of case, subject and `Lab`: all that is random comes from
   `Lab.seed`, so that all subjects get the same;
4. says what it has found as `Finding`s, from the figures of a report alone, by stated rules;
5. draws and judges any report of its own, also one that ended early or has rows without values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

import msgspec

from vramkit.lab.result import Quantity, Report
from vramkit.lab.settings import Setting, Settings
from vramkit.report.blocks import Block, Tone

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver

__all__ = [
    "Case",
    "Experiment",
    "Finding",
    "Lab",
    "Measured",
    "Setting",
    "Settings",
    "Unmeasured",
    "chosen",
    "chosen_cases",
]


class Case(msgspec.Struct, frozen=True):
    """A workload, perhaps in one of several variants. The texts have no commas."""

    workload: str
    arm: str = ""

    @property
    def name(self) -> str:
        """For --cases."""
        return f"{self.workload}/{self.arm}" if self.arm else self.workload


@dataclass(frozen=True)
class Lab:
    """What a case is measured with. Only `driver` and `device` are shared between cases."""

    driver: Driver
    device: Device
    seed: int
    repetition: int
    settings: Settings


class Finding(msgspec.Struct, frozen=True):
    """One sentence that the figures allow. `rule` says by which rule, with its numbers."""

    tone: Tone
    text: str
    rule: str = ""


class Measured(msgspec.Struct, frozen=True):
    """What one repetition has to tell. Row keeps the series and drawings of the last one that has
    some."""

    values: dict[str, float]
    series: dict[str, list[float]] = {}
    drawings: list[Block] = []


class Unmeasured(Exception):
    """Raised by measure() where a subject cannot take part in a case; says why."""


class Experiment(Protocol):
    @property
    def name(self) -> str:
        """Of the command: `vramkit lab NAME`."""
        ...

    @property
    def title(self) -> str: ...

    @property
    def question(self) -> str:
        """A paragraph: what is asked, and what the reader should know to read the answer."""
        ...

    @property
    def quantities(self) -> dict[str, Quantity]:
        """Of the values that measure() returns, the most important first."""
        ...

    @property
    def settings(self) -> Sequence[Setting]:
        """What `--set` may change; all of them are in the `Settings` of the other methods."""
        ...

    def simulator(self, settings: Settings) -> dict[str, object]:
        """Settings of Simulator.apply(), where the card is a simulated one: on before each case.

        Those of VRAMKIT_SIM that are not among them stay, and so does the profile.
        """
        ...

    def subjects(self, driver: Driver) -> dict[str, str]:
        """All that there are, by name: why it cannot take part here, or an empty text."""
        ...

    def cases(self, settings: Settings) -> list[Case]:
        """Each once. Raises ValueError for settings that do not go together."""
        ...

    def measure(self, case: Case, subject: str, lab: Lab) -> dict[str, float] | Measured:
        """One repetition: finite values of some of the quantities.

        Raises OutOfMemoryError, Unmeasured, or whatever goes wrong. A process in which that
        happened measures nothing more; otherwise the next case follows in the same process.
        """
        ...

    def findings(self, report: Report) -> list[Finding]: ...

    def blocks(self, report: Report) -> list[Block]:
        """Tables and plots, for the terminal and the page."""
        ...


def chosen(patterns: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """Those of the known that match one of the patterns, which may have * and ?; all without any.

    Raises ValueError for a pattern that matches nothing.
    """
    return _chosen(patterns, {name: [name] for name in known}, what)


def chosen_cases(patterns: Sequence[str], cases: Sequence[Case]) -> list[Case]:
    """As chosen(): a pattern matches the name of a case, or its workload, which means all arms."""
    by_name = {case.name: case for case in cases}
    names = {name: [name, case.workload] for name, case in by_name.items()}
    return [by_name[name] for name in _chosen(patterns, names, "case")]


def _chosen(patterns: Sequence[str], known: Mapping[str, Sequence[str]], what: str) -> list[str]:
    def matches(names: Sequence[str], pattern: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in names)

    for pattern in patterns:
        if not any(matches(names, pattern) for names in known.values()):
            raise ValueError(f"no {what} is called {pattern!r}; there are: {', '.join(known)}")
    return [
        name
        for name, names in known.items()
        if not patterns or any(matches(names, pattern) for pattern in patterns)
    ]
