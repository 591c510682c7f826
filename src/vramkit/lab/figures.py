"""Single figures of a report, and how near they come to others."""

from __future__ import annotations

import statistics

from vramkit.lab.claims import Verdict
from vramkit.lab.experiment import Case
from vramkit.lab.result import Report


def figure(report: Report, case: Case, subject: str, quantity: str) -> float | None:
    """The median of a row's repetitions; None where there are none."""
    row = report.row(case.workload, subject, case.arm)
    values = row.values.get(quantity) if row is not None else None
    return statistics.median(values) if values else None


def within(value: float, other: float, part: float) -> bool:
    return abs(value - other) <= part * other


def plainly(holds: bool) -> Verdict:
    """Of a claim that holds or does not."""
    return "confirmed" if holds else "not confirmed"
