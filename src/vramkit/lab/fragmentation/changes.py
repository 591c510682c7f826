"""How allocation changes from phase to phase, and which explanation the arms support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from vramkit.lab.fragmentation.programs import ARMS, Arm
from vramkit.lab.ranking import percent
from vramkit.lab.result import Report
from vramkit.lab.samples import Difference, compare

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
    "use, or caches where it is also faster with memory that is there already; else none"
)


def change(
    report: Report, subject: str, workload: str, arm: str, of: str, to: str
) -> Difference | None:
    """Of one figure of a row to another; None where one of them is missing."""
    row = report.row(workload, subject, arm)
    if row is None or not row.values.get(of) or not row.values.get(to):
        return None
    return compare(row.values[to], row.values[of])


def faster_by_arm(report: Report, subject: str, workload: str) -> dict[Arm, bool | None]:
    """Whether phase 3 was faster than phase 1; None: it cannot be said."""
    found: dict[Arm, bool | None] = {}
    for arm in ARMS:
        difference = change(report, subject, workload, arm, "phase_1", "phase_3")
        unknown = difference is None or difference.verdict == "too few"
        found[arm] = None if unknown or difference is None else difference.verdict == "lower"
    return found


def explain(faster: Mapping[Arm, bool | None]) -> Explanation:
    if faster["cold"] is False:
        return "nothing to explain"
    if any(each is None for each in faster.values()):
        return "unknown"
    if faster["warm"]:
        return "repetition" if faster["skipped"] else "mixing"
    if not faster["skipped"]:
        return "none fits"
    return "caches" if faster["grown"] else "first use"


def change_text(difference: Difference) -> str:
    """ "+3.2 % (1.0 % to 5.1 %)"; "unchanged" where it is no difference."""
    if difference.verdict == "no difference" and difference.relative == 0:
        return "unchanged"
    text = percent(difference.relative, sign=True)
    if difference.least != difference.most:
        least, most = percent(difference.least, sign=True), percent(difference.most, sign=True)
        text += f" ({least} to {most})"
    notes = {"no difference": ", within the spread", "too few": ", too few repetitions"}
    return text + notes.get(difference.verdict, "")
