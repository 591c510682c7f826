"""The rows of the experiment in which the pool is to be first; in time among those that are called
from C++ as it is."""

from __future__ import annotations

from vramkit.lab.fragmentation.experiment import EXTREMES
from vramkit.lab.fragmentation.measuring import ALONE, TOUCH
from vramkit.lab.fragmentation.programs import ARMS, PHASES
from vramkit.lab.goals import FROM_CPP, HELD, Place, place
from vramkit.lab.result import Report


def places(report: Report) -> list[Place]:
    times: dict[tuple[str, str], list[str]] = {
        (workload, arm): [f"phase_{phase}" for phase in PHASES]
        for workload in (ALONE, TOUCH)
        for arm in ARMS
    }
    times |= {(workload, ""): ["late"] for workload in EXTREMES}
    found: list[Place | None] = []
    for case, quantities in times.items():
        if report.simulated is None:
            found += [place(report, *case, each, among=FROM_CPP) for each in quantities]
        found.append(place(report, *case, HELD))
    return [each for each in found if each is not None]
