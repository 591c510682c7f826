"""Reports of the two allocator experiments with figures made by hand."""

from __future__ import annotations

from collections.abc import Mapping

from tests.lab.runs import report
from vramkit.lab.experiment import Experiment
from vramkit.lab.result import Report, Row

FEW = 2
ENOUGH = 5


def around(middle: float, spread: float = 0.001, count: int = ENOUGH) -> list[float]:
    """Values on both sides of the middle, at most this part of it away."""
    half = (count - 1) / 2
    return [middle * (1 + spread * (each - half) / max(half, 1)) for each in range(count)]


def made(
    experiment: Experiment,
    rows: Mapping[tuple[str, str, str], Mapping[str, list[float]]],
    *,
    simulated: str | None = None,
) -> Report:
    """Rows by workload, arm and subject."""
    found = report(
        experiment=experiment.name, quantities=experiment.quantities, simulated=simulated
    )
    for (workload, arm, subject), values in rows.items():
        found.rows.append(Row(workload, subject, arm, dict(values), "measured"))
    return found


def lacking(workload: str, arm: str, subject: str, outcome: str) -> Row:
    return Row(workload, subject, arm, {}, outcome, "because")  # type: ignore[arg-type]
