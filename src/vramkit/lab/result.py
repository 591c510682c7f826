"""What an experiment has measured, as it is kept in a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

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


class Machine(msgspec.Struct, frozen=True):
    """Where it was measured. Texts are empty where the machine does not say."""

    cpu: str
    cores: int
    kernel: str
    gpu: str
    nvidia_driver: str
    python: str


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
    settings: dict[str, str | int | float | bool | list[str]]
    """Of the command: what another run needs to be comparable."""
    seed: int
    """Of the order of subjects and of all random workloads."""
    quantities: dict[str, Quantity]
    rows: list[Row] = []
    repetitions: int = 0
    """That were wanted; rows say how many they have."""
    stopped: str = ""
    """Why the run ended early; empty: it came to its end."""
    format: int = FORMAT

    def row(self, workload: str, subject: str, arm: str = "") -> Row | None:
        wanted = (workload, subject, arm)
        return next(
            (row for row in self.rows if (row.workload, row.subject, row.arm) == wanted), None
        )


class ResultError(ValueError):
    """A file that is no result of the lab; says why."""


def save(report: Report, path: Path) -> None:
    """In one step: whoever reads the file sees this report, or the one before."""
    text = msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(text)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def load(path: Path) -> Report:
    """Raises ResultError for what is no result, and OSError."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ResultError(f"{path}: no result of vramkit lab: {error}") from error
    if report.format != FORMAT:
        raise ResultError(
            f"{path}: written in format {report.format}; this vramkit reads format {FORMAT}"
        )
    return report
