"""How allocation changes from phase to phase, and which explanation the arms support."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from vramkit.lab.fragmentation.programs import ARMS, Arm
from vramkit.lab.ranking import percent
from vramkit.lab.result import Report
from vramkit.lab.samples import Difference, Spread, compare

Explanation = Literal[
    "first use", "caches", "repetition", "mixing", "nothing to explain", "none fits", "unknown"
]
EXPLANATIONS: dict[Explanation, str] = {
    "first use": (
        "it was the first use: memory had to be had from the driver. Neither mixing nor caches are "
        "needed to explain it"
    ),
    "caches": (
        "it was warm-up of something else than memory, such as caches: with the memory there "
        "already, the first round is still the slow one"
    ),
    "repetition": "it was repetition: it goes on after a warm-up, and without the mixed rounds",
    "mixing": "it was the mixed rounds: it needs them, and a warm-up does not replace them",
    "nothing to explain": "it did not get faster beyond the spread",
    "none fits": "none of the three explanations fits the arms",
    "unknown": "the arms were not all measured, or not often enough",
}
RULE = (
    "from phase 1 to phase 3, alone. Faster with a warm-up and without mixing: repetition; faster "
    "with a warm-up, not without mixing: mixing; not with a warm-up, but without mixing: first "
    "use, or caches where with memory that is there already more than half of it remains; else "
    "none of them"
)


def change(
    report: Report, subject: str, workload: str, arm: str, of: str, to: str
) -> Difference | None:
    """Of one figure of a row to another; None where one of them is missing."""
    row = report.row(workload, subject, arm)
    if row is None or not row.values.get(of) or not row.values.get(to):
        return None
    return compare(row.values[to], row.values[of])


def explanation(report: Report, subject: str, workload: str) -> Explanation:
    gains = {arm: _gain(report, subject, workload, arm) for arm in ARMS}
    return explain(gains)


def explain(gains: Mapping[Arm, float | None]) -> Explanation:
    """By what an allocation gains from phase 1 to 3 in each arm: nanoseconds, 0 where it does not
    beyond the spread, None where that cannot be said."""
    if gains["cold"] == 0:
        return "nothing to explain"
    cold, warm, grown, skipped = (gains[arm] for arm in ARMS)
    if cold is None or warm is None or grown is None or skipped is None:
        return "unknown"
    if warm > 0:
        return "repetition" if skipped > 0 else "mixing"
    if skipped == 0:
        return "none fits"
    return "caches" if grown > cold / 2 else "first use"


def _gain(report: Report, subject: str, workload: str, arm: str) -> float | None:
    difference = change(report, subject, workload, arm, "phase_1", "phase_3")
    row = report.row(workload, subject, arm)
    if difference is None or row is None or difference.verdict == "too few":
        return None
    if difference.verdict != "lower":
        return 0.0
    return Spread.of(row.values["phase_1"]).median - Spread.of(row.values["phase_3"]).median


def change_text(difference: Difference) -> str:
    """ "+3.2 % (1.0 % to 5.1 %)"; "unchanged" where it is no difference, "from zero" where no part
    can be told."""
    if difference.verdict == "no difference" and difference.relative == 0:
        return "unchanged"
    text = percent(difference.relative, sign=True)
    if math.isinf(difference.relative):
        text = "from zero"
    elif difference.least != difference.most:
        least, most = percent(difference.least, sign=True), percent(difference.most, sign=True)
        text += f" ({least} to {most})"
    notes = {"no difference": ", within the spread", "too few": ", too few repetitions"}
    return text + notes.get(difference.verdict, "")
