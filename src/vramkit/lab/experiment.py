"""What an experiment is.

An experiment
1. asks one question of several subjects (allocators, policies, modes): each of its cases is
   measured for each subject, in a process of its own for each subject and repetition;
2. is one object in catalog.EXPERIMENTS, and does no work when its module is imported;
3. measures a case as a pure function of case, subject and `Lab`: all that is random comes from
   `Lab.seed`, so that all subjects get the same;
4. says what it has found as `Finding`s, from the figures of a report alone, by stated rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from vramkit.lab.result import Quantity, Report
from vramkit.report.blocks import Block, Tone

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver

Settings = Mapping[str, str | int | float | bool | list[str]]


class Case(msgspec.Struct, frozen=True):
    """A workload, perhaps in one of several variants."""

    workload: str
    arm: str = ""


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
    def needs_card(self) -> bool:
        """Whether it runs on a card, real or simulated. Else `Lab.device` is not to be touched."""
        ...

    def simulator(self, settings: Settings) -> dict[str, object]:
        """Settings of Simulator.reset() for each process, where the card is a simulated one."""
        ...

    def subjects(self, driver: Driver) -> dict[str, str]:
        """All that there are, by name: why it cannot take part here, or an empty text."""
        ...

    def cases(self, settings: Settings) -> list[Case]: ...

    def measure(self, case: Case, subject: str, lab: Lab) -> dict[str, float]:
        """One repetition. Raises OutOfMemoryError, Unmeasured, or whatever goes wrong."""
        ...

    def findings(self, report: Report) -> list[Finding]: ...

    def blocks(self, report: Report) -> list[Block]:
        """Tables and plots, for the terminal and the page."""
        ...


Progress = Callable[[str], None]


def chosen(names: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """Those of the known that match one of the names, which may have * and ?; all without names.

    Raises ValueError for a name that matches nothing.
    """
    from fnmatch import fnmatchcase

    if not names:
        return list(known)
    for name in names:
        if not any(fnmatchcase(each, name) for each in known):
            raise ValueError(f"no {what} is called {name!r}; there are: {', '.join(known)}")
    return [each for each in known if any(fnmatchcase(each, name) for name in names)]
