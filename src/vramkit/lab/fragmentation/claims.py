"""What the study of fragmentation claims, each by the figures that it stands on.

The study timed new allocators without a warm-up: that is the arm that judges it.
"""

from __future__ import annotations

from collections.abc import Callable

from vramkit.lab.claims import FACTOR, NOT_MEASURED, Claim, Judged, Verdict
from vramkit.lab.fragmentation.changes import change, change_text, explanation
from vramkit.lab.fragmentation.measuring import ALONE
from vramkit.lab.result import Report

POOL = ("rmm_pool", "fixed_pool")
ASYNC = ("rmm_async", "async")
ARENA = ("rmm_arena", "arena")
"""Of what the study measured: RMM's own where it is installed, else the same method here."""
ARM = "cold"
CHANGE_RULE = (
    "phase 5 against phase 1. Confirmed: the same direction beyond the spread, between half and "
    "twice the size; in part: another size"
)
WITHIN = 0.05

Kind = tuple[str, ...]


def _one_of(kind: Kind, report: Report) -> str:
    there = {row.subject for row in report.rows if row.values.get("phase_1")}
    return next((name for name in kind if name in there), kind[-1])


def changes_by(kind: Kind, claimed: float) -> Callable[[Report], Judged]:
    def judge(report: Report) -> Judged:
        name = _one_of(kind, report)
        difference = change(report, name, ALONE, ARM, "phase_1", "phase_5")
        if difference is None:
            return NOT_MEASURED
        figures = f"{name}: {change_text(difference)}"
        if difference.verdict == "too few":
            return Judged("cannot be said here", figures, CHANGE_RULE)
        verdict: Verdict = "not confirmed"
        if difference.verdict == ("lower" if claimed < 0 else "higher"):
            part = difference.relative / claimed
            verdict = "confirmed" if 1 / FACTOR <= part <= FACTOR else "in part"
        return Judged(verdict, figures, CHANGE_RULE)

    return judge


def all_within(report: Report) -> Judged:
    parts, within, few = [], [], False
    for kind in (POOL, ASYNC, ARENA):
        name = _one_of(kind, report)
        difference = change(report, name, ALONE, ARM, "phase_1", "phase_5")
        if difference is not None:
            parts.append(f"{name} {change_text(difference)}")
            within.append(abs(difference.relative) < WITHIN)
            few |= difference.verdict == "too few"
    if not parts:
        return NOT_MEASURED
    verdict: Verdict = "confirmed" if all(within) else "not confirmed"
    if few:
        verdict = "cannot be said here"
    return Judged(verdict, "; ".join(parts), "phase 5 against phase 1, medians")


def pool_is_explained(report: Report) -> Judged:
    """It names three reasons; whether one of them can be seen."""
    name = _one_of(POOL, report)
    found = explanation(report, name, ALONE)
    verdict: Verdict = (
        "confirmed" if found in ("first use", "caches", "mixing") else "not confirmed"
    )
    if found == "unknown":
        verdict = "cannot be said here"
    return Judged(verdict, f"{name}: {found}", "see the arms")


CLAIMS = (
    Claim("the pool gets faster by 14.2 %", changes_by(POOL, -0.142)),
    Claim("async gets slower by 3.2 %", changes_by(ASYNC, 0.032)),
    Claim("the arena gets slower by 3.1 %", changes_by(ARENA, 0.031)),
    Claim("all changes are below 5 %", all_within),
    Claim("warm-up, caches or its own order make the pool faster", pool_is_explained),
)
