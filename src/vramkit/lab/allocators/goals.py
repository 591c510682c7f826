"""The rows of the experiment in which the pool is to be first."""

from __future__ import annotations

from vramkit.lab.allocators.cases import all_cases
from vramkit.lab.allocators.memory_limited import NAME as MEMORY_LIMITED
from vramkit.lab.allocators.memory_limited import SIZINGS
from vramkit.lab.goals import FROM_CPP, HELD, Place, place
from vramkit.lab.result import Report


def places(report: Report) -> list[Place]:
    """Of the small card each size: the pool, which takes none, has one row for all of them, and is
    called from C++ there."""
    quantities = ["time"] * (report.simulated is None) + [HELD]
    found = [place(report, *case, quantity) for case in all_cases() for quantity in quantities]
    usual = SIZINGS[0].arm
    for sizing in SIZINGS:
        for quantity in quantities:
            among = None if quantity == HELD else FROM_CPP
            limited = MEMORY_LIMITED, sizing.arm, quantity
            found.append(place(report, *limited, among=among, own_arm=usual))
    return [each for each in found if each is not None]
