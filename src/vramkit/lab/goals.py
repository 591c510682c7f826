"""Whether the pool is first in each row, or within the spread of the first, in time and in held
memory: the goal of the project.

By the rule of samples.py. Times of the simulated GPU have
no allocator's own work in them and are left out; what is held there is what a card would see.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from vramkit.lab.ranking import difference_text, listed, rank
from vramkit.lab.result import Report
from vramkit.lab.samples import compare
from vramkit.lab.subjects import ours
from vramkit.report.blocks import Table
from vramkit.report.units import count_text

OURS = "pool"
KEEPS_NOTHING = "direct"
HELD = "over_in_use"
TOOK_NO_PART = ("not here", "not run")
FROM_CPP = frozenset(each.name for each in ours.OURS)
"""The others are called from Python. Where these are not, their times cannot be set beside each
other."""
Mark = Literal["met", "met among those that keep memory", "missed", "cannot be said"]
MARKS: tuple[Mark, ...] = ("met", "met among those that keep memory", "missed", "cannot be said")
RULE = (
    "Met: the pool is first, or not behind the first beyond the spread. Held memory is the peak of "
    "what is held over the peak of what is in use. `direct` keeps nothing and asks the driver for "
    "each block, at the cost of time: where it alone holds less, the goal is met among those that "
    "keep memory."
)


@dataclass(frozen=True)
class Place:
    """Of the pool in one row."""

    workload: str
    arm: str
    quantity: str
    mark: Mark
    figures: str

    @property
    def row(self) -> str:
        return f"`{self.workload}`{f' ({self.arm})' if self.arm else ''}"


def place(
    report: Report,
    workload: str,
    arm: str,
    quantity: str,
    *,
    among: Collection[str] | None = None,
    own_arm: str | None = None,
) -> Place | None:
    """None where the pool took no part, or nobody else did. `among`: those that can be compared.
    `own_arm`: that in which the pool was measured, where it is another."""
    rows = {
        row.subject: row
        for row in report.rows
        if (row.workload, row.arm) == (workload, arm)
        and (among is None or row.subject in among)
        and row.outcome not in TOOK_NO_PART
    }
    if own_arm is not None:
        own = report.row(workload, OURS, own_arm)
        if own is not None and own.outcome not in TOOK_NO_PART:
            rows[OURS] = own
    values = {name: row.values[quantity] for name, row in rows.items() if row.values.get(quantity)}
    if OURS not in rows or len(rows) < 2 or not values:
        return None

    def judged(mark: Mark, figures: str) -> Place:
        return Place(workload, arm, quantity, mark, figures)

    if OURS not in values:
        outcome = rows[OURS].outcome
        return None if outcome == "measured" else judged("missed", f"{outcome}; others are served")
    if len(values) == 1:
        others = [row.outcome for name, row in rows.items() if name != OURS]
        if all(outcome == "out of memory" for outcome in others):
            return judged("met", "alone served")
        return None
    mark, figures = _judge(values)
    kept = {name: each for name, each in values.items() if name != KEEPS_NOTHING}
    if mark == "missed" and quantity == HELD and len(kept) < len(values):
        above = difference_text(compare(values[OURS], values[KEEPS_NOTHING]))
        mark, figures = _judge(kept) if len(kept) > 1 else ("met", "alone")
        figures = f"{figures}; above `{KEEPS_NOTHING}` by {above}"
        if mark == "met":
            mark = "met among those that keep memory"
    return judged(mark, figures)


def _judge(values: dict[str, list[float]]) -> tuple[Mark, str]:
    ranking = rank(values)
    if OURS in ranking.behind:
        first = listed([ranking.first, *ranking.level])
        return "missed", f"{first} first; behind by {difference_text(ranking.behind[OURS])}"
    if ranking.too_few:
        return "cannot be said", "too few repetitions"
    level = [name for name in (ranking.first, *ranking.level) if name != OURS]
    if level:
        return "met", f"level with {listed(level)}"
    following = next(iter(ranking.behind))
    ahead = compare(values[following], values[OURS])
    return "met", f"first; `{following}` is above it by {difference_text(ahead)}"


def counted(places: Sequence[Place]) -> str:
    """In how many rows the goal is met."""
    parts = []
    for what, chosen in (
        ("time", [each for each in places if each.quantity != HELD]),
        ("held memory", [each for each in places if each.quantity == HELD]),
    ):
        marks = [each.mark for each in chosen]
        words = ", ".join(f"{marks.count(mark)} {mark}" for mark in MARKS if mark in marks)
        if words:
            parts.append(f"{what}, of {count_text(len(chosen), 'row')}: {words}")
    return "; ".join(parts)


def goal_table(report: Report, places: Sequence[Place]) -> Table:
    rows = [
        [each.row.replace("`", ""), report.quantities[each.quantity].title, each.mark, each.figures]
        for each in places
    ]
    title = f"The goal: pool first, or within the spread of the first. {counted(places)}"
    return Table(["row", "figure", "goal", "figures"], rows, title)
