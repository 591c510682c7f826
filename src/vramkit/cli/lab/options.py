"""The options of an experiment, and the command that has them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from vramkit.lab.result import Report

REPETITIONS = 5


@dataclass(frozen=True)
class Options:
    """How an experiment is run.

    Parameters
    ----------
    driver
        cuda, sim or sim:PROFILE. Default: VRAMKIT_DRIVER, else the NVIDIA card, else sim.
    device
        The number of the card. Default: 0.
    subjects
        Who takes part: names with commas between, which may have * and ?. Default: all.
    cases
        What is measured: names with commas between, which may have * and ?. Default: all.
    repetitions
        Of each case, for each subject. Differences are told from 5 on. Default: 5.
    seed
        Of the order of the subjects and of random workloads. Default: 0.
    set
        A setting of the experiment, NAME=VALUE; may be given several times.
    time_limit
        Seconds after which the run ends early, and keeps what it has. Default: none.
    case_limit
        Seconds that one repetition of a case may take. Default: 120.
    on
        Measure repetitions on the cards of Ray: ray (what is there) or ray:ADDRESS. Default: here.
    continue_
        The file of a result that ended early: what it lacks is measured, on the same card and
        machine, with the same versions. What else is not given is as in it; --output too.
    output
        The file for the result (JSON), written after each measurement.
    html
        The file for the report as a page.
    json
        The result as one JSON document, instead of the report.
    """

    driver: str | None = None
    device: int = 0
    subjects: list[str] = field(default_factory=list)
    cases: list[str] = field(default_factory=list)
    repetitions: int | None = None
    seed: int | None = None
    set: list[str] = field(default_factory=list)
    time_limit: float | None = None
    case_limit: float = 120.0
    on: str | None = None
    continue_: Annotated[Path | None, Parameter(name="--continue")] = None
    output: Path | None = None
    html: Path | None = None
    json: bool = False

    def filled(self, before: Report | None) -> Options:
        """What was not given is as in the result that the run goes on with, else the default."""
        repetitions, seed = (before.repetitions, before.seed) if before else (REPETITIONS, 0)
        return replace(
            self,
            repetitions=repetitions if self.repetitions is None else self.repetitions,
            seed=seed if self.seed is None else self.seed,
            output=self.output or self.continue_,
        )

    def command(self, start: Sequence[str], driver: str | None) -> str:
        """That measures the same again; it begins with `start`. Without a driver nodes choose."""
        words = [*start, *(["--driver", driver] if driver else []), "--seed", str(self.seed or 0)]
        words += ["--repetitions", str(self.repetitions or REPETITIONS)]
        if self.device:
            words += ["--device", str(self.device)]
        for option, values in (("--subjects", self.subjects), ("--cases", self.cases)):
            if values:
                words += [option, ",".join(values)]
        for pair in self.set:
            words += ["--set", pair]
        words += ["--case-limit", f"{self.case_limit:g}"]
        if self.on is not None:
            words += ["--on", self.on]
        simulator = os.environ.get("VRAMKIT_SIM", "")
        before = (
            f"VRAMKIT_SIM={shlex.quote(simulator)} "
            if simulator and driver not in ("cuda", None)
            else ""
        )
        return before + shlex.join(words)
