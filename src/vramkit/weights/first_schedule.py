"""The schedule that a weight manager begins with: what its budget allows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.driver.types import integer, size
from vramkit.report.units import bytes_text
from vramkit.weights.card_memory import staging_slot
from vramkit.weights.gather import Gather, staged_chunks
from vramkit.weights.layout import BudgetError, Group, plan_layout
from vramkit.weights.packing import Packing
from vramkit.weights.schedule import Policy, Schedule, chosen_policy, make_schedule

if TYPE_CHECKING:
    from vramkit.driver import Device


def plan_schedule(
    device: Device,
    groups: Sequence[Group],
    *,
    budget: int,
    ring: int | None = None,
    policy: str | Policy = "auto",
    prefer: Collection[int] = (),
    packings: Sequence[Packing | None] = (),
    gather: Gather | None = None,
) -> Schedule:
    """What a WeightManager with these arguments begins with. Raises what it would raise."""
    chosen = chosen_policy(policy)
    whole = size(budget, "budget")
    slot = staging_slot(staged_chunks(groups, packings, gather))
    staging = _core.STAGING_SLOTS * slot
    staged = "packed weights" if gather is None else "shares"
    if staging >= whole > 0:
        raise BudgetError(
            f"budget is {bytes_text(whole)}; {staged} on their way take {bytes_text(staging)}"
        )
    try:
        layout = plan_layout(
            groups,
            budget=whole - staging,
            ring=None if ring is None else integer(ring, "ring", besides="None, or "),
            depth=chosen.depth,
            prefer=prefer,
            granularity=device.granularity,
        )
    except BudgetError as error:
        if not staging:
            raise
        besides = f"besides: {staged} on their way, {bytes_text(staging)}"
        raise BudgetError(f"{error}\n  {besides}") from None
    return make_schedule(layout, range(len(groups)), chosen)
