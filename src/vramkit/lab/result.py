"""What an experiment has measured, as it is kept in a file."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Literal

import msgspec

from vramkit.lab.settings import Value
from vramkit.report.blocks import Block
from vramkit.report.units import Unit

FORMAT = 1

Outcome = Literal["measured", "out of memory", "failed", "timed out", "not here", "not run"]


class Quantity(msgspec.Struct, frozen=True):
    """A measured figure: its name in tables, its unit, and which direction is better."""

    title: str
    unit: Unit
    better: Literal["lower", "higher", "neither"] = "lower"


class Row(msgspec.Struct):
    """One subject under one workload: the values of all repetitions, by quantity.

    A row that has no values says by its outcome why, and in words by `why`. A row that failed later
    keeps what it has measured before.
    """

    workload: str
    subject: str
    arm: str = ""
    """A variant of the workload that all subjects have: "with a mutex"."""
    values: dict[str, list[float]] = {}
    outcome: Outcome = "not run"
    why: str = ""
    series: dict[str, list[float]] = {}
    """Figures along the workload, by name; of the last repetition that has some, as are the
    drawings."""
    drawings: list[Block] = []
    repetitions: int = 0
    """That came to an end, the one that failed with them: a quantity may lack values of some."""

    def lacks(self, repetitions: int) -> int:
        """Of so many. A row that failed is not tried again."""
        if self.outcome not in ("measured", "not run"):
            return 0
        return repetitions - self.repetitions


class Machine(msgspec.Struct, frozen=True):
    """Where it was measured. Texts are empty where the machine does not say."""

    cpu: str
    cores: int
    kernel: str
    gpu: str
    nvidia_driver: str
    python: str


class Site(msgspec.Struct):
    """A card that has measured repetitions of a run that was spread over several."""

    node: str
    card: str
    uuid: str
    card_bytes: int
    simulated: str | None
    machine: Machine
    versions: dict[str, str]
    repetitions: list[int] = []
    """Their numbers, from 0 on."""


class Report(msgspec.Struct):
    """A whole run of an experiment; written after each row, so that nothing measured is lost."""

    experiment: str
    date: str
    machine: Machine
    versions: dict[str, str]
    """vramkit, and each package that took part."""
    card: str
    card_bytes: int
    simulated: str | None
    """The profile, where the card was a simulated one."""
    settings: dict[str, Value]
    """Of the experiment: what another run needs to be comparable."""
    seed: int
    """Of the order of subjects and of all random workloads."""
    quantities: dict[str, Quantity]
    rows: list[Row] = []
    repetitions: int = 0
    """That were wanted; rows say how many they have."""
    stopped: str = ""
    """Why the run ended early; empty: it came to its end."""
    command: str = ""
    """That measures the same again; empty where no command did."""
    continued: list[str] = []
    """Dates of the runs that went on with this one, by `--continue`."""
    sites: list[Site] = []
    """Of a run on a cluster: who has measured what. The card, the machine and the versions above
    are then those of the card that was asked first."""
    format: int = FORMAT

    def row(self, workload: str, subject: str, arm: str = "") -> Row | None:
        wanted = (workload, subject, arm)
        return next(
            (row for row in self.rows if (row.workload, row.subject, row.arm) == wanted), None
        )


class ResultError(ValueError):
    """A file that is no result of the lab; says why."""


class _Kind(msgspec.Struct):
    """What tells a result from other documents, whatever its format."""

    experiment: str
    format: int


def save(report: Report, path: Path) -> None:
    """In one step: whoever reads the file sees this report, or the one before.

    Raises OSError, also for what is no regular file: a rename would take the place of a device.
    """
    text = msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
    path = path.resolve()  # a link stays one
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no regular file, which alone can be replaced")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(text)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def load(path: Path) -> Report:
    """Raises ResultError for what is no result, and OSError."""
    text = path.read_bytes()
    try:
        kind = msgspec.json.decode(text, type=_Kind)
        if kind.format != FORMAT:
            raise ResultError(
                f"{path}: written in format {kind.format}; this vramkit reads format {FORMAT}"
            )
        report = msgspec.json.decode(text, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ResultError(f"{path}: no result of vramkit lab: {error}") from error
    unknown = {name for row in report.rows for name in row.values} - report.quantities.keys()
    if unknown:
        raise ResultError(f"{path}: has values of {', '.join(sorted(unknown))}, but not what it is")
    for row in report.rows:
        for name, values in row.values.items():
            if not values or not all(0 <= value < math.inf for value in values):
                raise ResultError(
                    f"{path}: {name} of {row.subject}, {row.workload}, has the values "
                    f"{values[:5]}; it may have one or more from 0 on"
                )
    return report
