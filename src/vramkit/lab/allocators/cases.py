"""All cases but those of the small card, as they stand in tables."""

from __future__ import annotations

from vramkit.lab.allocators.experiment import ENGINES, arm_of
from vramkit.lab.allocators.workloads import WORKLOADS


def all_cases(*engines: str) -> list[tuple[str, str]]:
    """Workload and arm, engine by engine; of all engines where none is named."""
    return [
        (workload.name, arm_of(arm, engine))
        for engine in engines or ENGINES
        for workload in WORKLOADS.values()
        for arm in workload.arms
    ]
