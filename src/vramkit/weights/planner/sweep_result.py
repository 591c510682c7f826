"""What a sweep of plans says, in the order of its grid, wherever the plans were made."""

from __future__ import annotations

from typing import Literal

import msgspec

from vramkit.weights.planner.result import SAME, Prediction

Outcome = Literal["planned", "refused", "failed", "lost", "not run"]


class Row(msgspec.Struct):
    """One plan. Model, profile, budget and policy are as given."""

    model: str
    profile: str
    budget: str
    policy: str
    outcome: Outcome = "not run"
    """refused: as offload() would, a budget that is too small for example. lost: the process that
    made the plan was, again and again."""
    why: str = ""
    card: str = ""
    plan: Prediction | None = None
    best: bool = False
    """The fastest of its model, card and ranks; of several, that with the least memory."""
    ranks: int = 1


class Model(msgspec.Struct, frozen=True):
    """As Plan says it; `why` it could not be read."""

    model: str
    source: str = ""
    layers: int = 0
    groups: int = 0
    weight_bytes: int = 0
    notes: tuple[str, ...] = ()
    why: str = ""


class PlanSweep(msgspec.Struct):
    models: list[Model]
    rows: list[Row]
    """By model, profile, budget, policy and ranks."""
    stopped: str = ""
    """Why it ended early; empty: it came to its end."""
    simulated: bool = True

    @property
    def planned(self) -> int:
        return sum(row.plan is not None for row in self.rows)


def mark_best(rows: list[Row]) -> None:
    """Times that differ by less than SAME are equal: then the least memory, then the first."""
    groups: dict[tuple[str, str, int], list[tuple[Row, Prediction]]] = {}
    for row in rows:
        row.best = False
        if row.plan is not None:
            groups.setdefault((row.model, row.profile, row.ranks), []).append((row, row.plan))
    for members in groups.values():
        least = min(plan.pass_s for _, plan in members)
        equal = [each for each in members if each[1].pass_s <= least * (1 + SAME)]
        min(equal, key=lambda each: each[1].device_bytes)[0].best = True
