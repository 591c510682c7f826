"""What parts of the time of a workload are: allocation, launches, waits, kernels."""

from __future__ import annotations

from vramkit.lab.ranking import measured
from vramkit.lab.result import Report
from vramkit.lab.samples import Range

MODELLED = ("native", "python")
SPLIT_ENGINES = ("cupy", *MODELLED)
"""Those that split their time: real kernels first, then in C++ where it was measured there."""


def shares(report: Report, workload: str, arm: str, quantity: str) -> dict[str, Range]:
    """By subject, of the time of the round in which the quantity was measured: of the timed one, or
    of one with clocks in it. Both figures are of the same repetitions."""
    times = measured(report, workload, arm, "time")
    times |= measured(report, workload, arm, "split_time")
    found = {}
    for name, parts in measured(report, workload, arm, quantity).items():
        of = [part / time for part, time in zip(parts, times.get(name, ()), strict=False) if time]
        if of:
            found[name] = Range.of(of)
    return found


def kernels_text(arms: list[str]) -> str:
    """Whose kernels the time of these cases had."""
    engines = {arm.split(" ")[0] for arm in arms}
    names = ["CuPy's kernels"] if "cupy" in engines else []
    names += ["modelled kernels"] if engines & set(MODELLED) else []
    return " and ".join(names)
