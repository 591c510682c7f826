"""The rows of the experiment in which the pool is to be first."""

from __future__ import annotations

from vramkit.lab.allocators.cases import all_cases
from vramkit.lab.allocators.memory_limited import NAME as MEMORY_LIMITED
from vramkit.lab.allocators.memory_limited import SIZINGS
from vramkit.lab.goals import HELD, Place, place
from vramkit.lab.result import Report


def places(report: Report) -> list[Place]:
    """Of the small card each size: the pool, which takes none, has one row for all of them."""
    quantities = ["time"] * (report.simulated is None) + [HELD]
    usual = SIZINGS[0].arm
    cases: list[tuple[str, str, str | None]] = [(*case, None) for case in all_cases()]
    cases += [(MEMORY_LIMITED, sizing.arm, usual) for sizing in SIZINGS]
    found = (
        place(report, workload, arm, quantity, own_arm=own_arm)
        for workload, arm, own_arm in cases
        for quantity in quantities
    )
    return [each for each in found if each is not None]
