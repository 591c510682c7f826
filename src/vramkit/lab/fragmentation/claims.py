"""What the study of fragmentation claims, each by the figures that it stands on.

The study timed new allocators without a warm-up: that is the arm that judges it.
"""

from __future__ import annotations

from collections.abc import Callable

from vramkit.lab.claims import (
    FACTOR,
    NOT_MEASURED,
    WITHIN_RULE,
    Claim,
    Judged,
    Verdict,
    judge_range,
    range_text,
)
from vramkit.lab.fragmentation.changes import change, change_text, explanation
from vramkit.lab.fragmentation.experiment import EXTREMES
from vramkit.lab.fragmentation.measuring import ALONE, TOUCH
from vramkit.lab.ranking import measured, percent
from vramkit.lab.result import Report
from vramkit.lab.samples import Difference, Range, ratio
from vramkit.lab.stand_ins import ARENA, ASYNC, KINDS, POOL, Kind, one_of
from vramkit.report.units import time_text

ARM = "cold"
CHANGE_RULE = (
    "phase {} against phase 1. Confirmed: the same direction beyond the spread, between half and "
    "twice the size; in part: another size"
)
WITHIN = 0.05
ALLOCATIONS = 100


def _one_of(kind: Kind, report: Report) -> str:
    there = {row.subject for row in report.rows if row.values.get("phase_1")}
    return one_of(kind, there)


def changes_by(kind: Kind, claimed: float, phase: int = 5) -> Callable[[Report], Judged]:
    rule = CHANGE_RULE.format(phase)

    def judge(report: Report) -> Judged:
        name = _one_of(kind, report)
        difference = change(report, name, ALONE, ARM, "phase_1", f"phase_{phase}")
        if difference is None:
            return NOT_MEASURED
        figures = f"{name}: {change_text(difference)}"
        if difference.verdict == "too few":
            return Judged("cannot be said here", figures, rule)
        verdict: Verdict = "not confirmed"
        if difference.verdict == ("lower" if claimed < 0 else "higher"):
            part = difference.relative / claimed
            verdict = "confirmed" if 1 / FACTOR <= part <= FACTOR else "in part"
        return Judged(verdict, figures, rule)

    return judge


def hundred_take(least_ms: float, most_ms: float) -> Callable[[Report], Judged]:
    """100 allocations of phase 1, by the three that the study measured."""

    def judge(report: Report) -> Judged:
        times = measured(report, ALONE, ARM, "phase_1")
        names = [name for kind in KINDS if (name := _one_of(kind, report)) in times]
        if not names:
            return NOT_MEASURED
        spent = {name: Range.of(times[name]).times(ALLOCATIONS * 1e-9) for name in names}
        near = {
            judge_range(each, least_ms * 1e-3 / FACTOR, most_ms * 1e-3 * FACTOR)
            for each in spent.values()
        }
        verdict: Verdict = "cannot be said here"
        if len(names) == len(KINDS) and verdict not in near:
            verdict = "in part" if len(near) > 1 else near.pop()
        figures = "; ".join(
            f"{name} {range_text(each, time_text)}, {time_text(each.median / ALLOCATIONS)} each"
            for name, each in spent.items()
        )
        rule = (
            "confirmed: phase 1 of all three between half the least and twice the most, "
            f"{WITHIN_RULE}; in part: of some of them"
        )
        return Judged(verdict, figures, rule)

    return judge


def extremes_within(report: Report) -> Judged:
    """The study did not measure these, and says that they would be under 5 % as well."""
    parts, over, unsure = [], False, False
    for workload in EXTREMES:
        known = measured(report, workload, "", "late")
        for kind in KINDS:
            name = next((each for each in kind if each in known), "")
            difference = change(report, name, workload, "", "early", "late")
            if difference is None:
                continue
            parts.append(f"{workload}: {name} {change_text(difference)}")
            over |= difference.verdict == "higher" and difference.relative >= WITHIN
            unsure |= difference.most >= WITHIN
    if not parts:
        return NOT_MEASURED
    verdict: Verdict = "confirmed"
    if over:
        verdict = "not confirmed"
    elif unsure:
        verdict = "cannot be said here"
    rule = "a late call against an early one. Confirmed: less than 5 % slower, with the spread"
    return Judged(verdict, "; ".join(parts), rule)


def tenth_costs_under(part: float) -> Callable[[Report], Judged]:
    """If allocation takes 10 % longer: of the time until a block is written."""

    def judge(report: Report) -> Judged:
        name = _one_of(POOL, report)
        alone = measured(report, ALONE, "warm", "phase_5").get(name)
        touched = measured(report, TOUCH, "warm", "phase_5").get(name)
        if alone is None or touched is None:
            return NOT_MEASURED
        whole = ratio(alone, touched)
        return Judged(
            judge_range(whole.times(0.1), 0, part),
            f"{name}: an allocation is {percent(whole.median)} of the time until its block is "
            f"written; 10 % of it are {range_text(whole.times(0.1), percent)}",
            f"confirmed: below {percent(part)}, {WITHIN_RULE}",
        )

    return judge


def all_within(report: Report) -> Judged:
    """Not said where the spread reaches beyond it: medians that are near each other prove nothing
    then."""
    parts, beyond, unsure = [], False, False
    for kind in KINDS:
        name = _one_of(kind, report)
        difference = change(report, name, ALONE, ARM, "phase_1", "phase_5")
        if difference is None:
            continue
        parts.append(f"{name} {change_text(difference)}")
        differs = difference.verdict in ("lower", "higher")
        beyond |= differs and _size(difference).least >= WITHIN
        unsure |= max(abs(difference.least), abs(difference.most)) >= WITHIN
    if not parts:
        return NOT_MEASURED
    verdict: Verdict = "confirmed"
    if beyond:
        verdict = "not confirmed"
    elif unsure:
        verdict = "cannot be said here"
    rule = "phase 5 against phase 1. Confirmed: the whole spread of each is below 5 %"
    return Judged(verdict, "; ".join(parts), rule)


def is_most_stable(kind: Kind) -> Callable[[Report], Judged]:
    """Its largest change, after 50 rounds or in the long run, is smaller than the others'."""
    rule = (
        "the larger of the changes from phase 1 to 3 and to 5, up or down. Confirmed: with its "
        "whole spread below those of the other two"
    )

    def judge(report: Report) -> Judged:
        changes = {}
        for each in KINDS:
            name = _one_of(each, report)
            found = [change(report, name, ALONE, ARM, "phase_1", f"phase_{to}") for to in (3, 5)]
            known = [_size(difference) for difference in found if difference is not None]
            if len(known) == len(found):
                changes[name] = max(known, key=lambda size: size.median)
        name = _one_of(kind, report)
        if len(changes) < len(KINDS):
            return NOT_MEASURED
        figures = "; ".join(f"{of} {range_text(size, percent)}" for of, size in changes.items())
        own = changes.pop(name)
        first = all(own.most < other.least for other in changes.values())
        return Judged("confirmed" if first else "not confirmed", figures, rule)

    return judge


def _size(difference: Difference) -> Range:
    """Of a change, up or down."""
    ends = abs(difference.least), abs(difference.most)
    least = 0.0 if difference.least <= 0 <= difference.most else min(ends)
    return Range(abs(difference.relative), least, max(ends))


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
    Claim("100 allocations take 23.4 to 27.9 ms", hundred_take(23.41, 27.89)),
    Claim("after 50 rounds the pool is 8.0 % faster", changes_by(POOL, -0.080, 3)),
    Claim("after 50 rounds async is 2.9 % slower", changes_by(ASYNC, 0.029, 3)),
    Claim("after 50 rounds the arena is 2.9 % faster", changes_by(ARENA, -0.029, 3)),
    Claim("the pool gets faster by 14.2 %", changes_by(POOL, -0.142)),
    Claim("async gets slower by 3.2 %", changes_by(ASYNC, 0.032)),
    Claim("the arena gets slower by 3.1 %", changes_by(ARENA, 0.031)),
    Claim("the arena is the most stable", is_most_stable(ARENA)),
    Claim("all changes are below 5 %", all_within),
    Claim("warm-up, caches or its own order make the pool faster", pool_is_explained),
    Claim("allocation that is 10 % slower costs less than 1 %", tenth_costs_under(0.01)),
    Claim("the cases that it calls extreme cost less than 5 %", extremes_within),
)
