"""What parts of the time of a workload are: allocation, launches, waits, kernels."""

from __future__ import annotations

from vramkit.lab.ranking import measured, medians
from vramkit.lab.result import Report

MODELLED = ("native", "python")
SPLIT_ENGINES = ("cupy", *MODELLED)
"""Those that split their time: real kernels first, then in C++ where it was measured there."""


def shares(report: Report, workload: str, arm: str, quantity: str) -> dict[str, float]:
    """By subject, of the time of the round in which the quantity was measured: of the timed one, or
    of one with clocks in it."""
    times = medians(measured(report, workload, arm, "time"))
    times |= medians(measured(report, workload, arm, "split_time"))
    found = medians(measured(report, workload, arm, quantity))
    return {name: each / times[name] for name, each in found.items() if times.get(name)}


def kernels_text(arms: list[str]) -> str:
    """Whose kernels the time of these cases had."""
    engines = {arm.split(" ")[0] for arm in arms}
    names = ["CuPy's kernels"] if "cupy" in engines else []
    names += ["modelled kernels"] if engines & set(MODELLED) else []
    return " and ".join(names)
