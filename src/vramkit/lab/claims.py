"""Claims of a study, each beside what was measured here, and whether that confirms it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from vramkit.lab.experiment import Case, Finding
from vramkit.lab.result import Report
from vramkit.report.blocks import Table, Tone

Verdict = Literal["confirmed", "in part", "not confirmed", "in its model only", "not measured here"]

TONES: dict[Verdict, Tone] = {
    "confirmed": "good",
    "in part": "note",
    "not confirmed": "warning",
    "in its model only": "note",
    "not measured here": "plain",
}


class Claim(msgspec.Struct, frozen=True):
    """`rule` says from which figures the verdict follows, with its numbers."""

    said: str
    found: str
    verdict: Verdict
    rule: str


def judged(holds: bool) -> Verdict:
    return "confirmed" if holds else "not confirmed"


def within(value: float, claimed: float, part: float) -> bool:
    return abs(value - claimed) <= part * claimed


def figure(report: Report, case: Case, subject: str, quantity: str) -> float | None:
    """The median of a row's repetitions; None where there are none."""
    row = report.row(case.workload, subject, case.arm)
    values = row.values.get(quantity) if row is not None else None
    return statistics.median(values) if values else None


def table(claims: Sequence[Claim]) -> Table:
    rows = [[claim.said, claim.found, claim.verdict, claim.rule] for claim in claims]
    return Table(["the study says", "found here", "verdict", "rule"], rows, "Claim by claim")


def findings(claims: Sequence[Claim]) -> list[Finding]:
    return [
        Finding(TONES[claim.verdict], f"{claim.said}: {claim.verdict}. {claim.found}", claim.rule)
        for claim in claims
    ]
