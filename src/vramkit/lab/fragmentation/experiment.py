"""The experiment: its cases and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramkit.lab.experiment import Case, Finding, Lab, Measured
from vramkit.lab.result import Quantity, Report
from vramkit.lab.settings import Setting, Settings
from vramkit.report.blocks import Block

if TYPE_CHECKING:
    from vramkit.driver import Driver

QUESTION = (
    "Does allocation get slower as memory falls to pieces? A hundred allocations are timed on a "
    "new allocator, after 50 rounds of blocks of all sizes, and after 100 rounds more; alone, and "
    "with a kernel that writes each block. Arms with a warm-up, with memory that is there already, "
    "and without the mixed rounds tell apart why an allocator gets faster or slower. Then come "
    "cases that are harder: sizes that differ by 10,000, a million small blocks, a long run, and "
    "memory that is nearly used up."
)
QUANTITIES = {
    "phase_1": Quantity("phase 1", "ns"),
    "phase_3": Quantity("phase 3", "ns"),
    "phase_5": Quantity("phase 5", "ns"),
    "again_1": Quantity("after 1", "ns"),
    "again_3": Quantity("after 3", "ns"),
    "again_5": Quantity("after 5", "ns"),
    "mix_2": Quantity("phase 2", "ns"),
    "mix_4": Quantity("phase 4", "ns"),
    "early": Quantity("early", "ns"),
    "late": Quantity("late", "ns"),
    "blocks": Quantity("blocks", "count", "neither"),
    "one_piece": Quantity("largest / free", "ratio", "higher"),
    "largest": Quantity("largest piece", "bytes", "higher"),
    "served": Quantity("served", "ratio", "higher"),
    "peak_held": Quantity("peak held", "bytes"),
    "average_held": Quantity("mean held", "bytes"),
    "over_in_use": Quantity("held / in use", "ratio"),
}
SETTINGS = (
    Setting("scale", 1.0, "rounds of the mixed phases and of the size range, "
            "as a part of the default", 0.01, 100.0),
    Setting("blocks", 0, "small blocks in use at once; 0: a million, on the simulated GPU 10,000",
            0, 100_000_000),
    Setting("rounds", 1000, "of the long run, 100 allocations each", 10, 100_000_000),
)  # fmt: skip
EXTREMES = ("size_range", "small_blocks", "long_run")
NEARLY_FULL = "nearly_full"


class Fragmentation:
    name = "fragmentation"
    title = "Allocation as memory falls to pieces"
    question = QUESTION
    quantities = QUANTITIES
    settings = SETTINGS

    def simulator(self, settings: Settings) -> dict[str, object]:
        return {"clock": "virtual", "checker": "off", "data": "off"}

    def subjects(self, driver: Driver) -> dict[str, str]:
        from vramkit.lab.subjects import missing

        return missing(driver)

    def cases(self, settings: Settings) -> list[Case]:
        from vramkit.lab.fragmentation.measuring import ALONE, TOUCH
        from vramkit.lab.fragmentation.programs import ARMS

        phases = [Case(workload, arm) for workload in (ALONE, TOUCH) for arm in ARMS]
        return [*phases, *(Case(name) for name in (*EXTREMES, NEARLY_FULL))]

    def measure(self, case: Case, subject: str, lab: Lab) -> dict[str, float] | Measured:
        from vramkit.lab.fragmentation.measuring import measure_case
        from vramkit.lab.subjects import SUBJECTS

        return measure_case(case, SUBJECTS[subject], lab)

    def findings(self, report: Report) -> list[Finding]:
        from vramkit.lab.fragmentation.findings import findings

        return findings(report)

    def blocks(self, report: Report) -> list[Block]:
        from vramkit.lab.fragmentation.blocks import blocks

        return blocks(report)


FRAGMENTATION = Fragmentation()
