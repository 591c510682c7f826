"""Tables and plots of the experiment."""

from __future__ import annotations

from vramkit.lab.claims import claim_table
from vramkit.lab.fragmentation.changes import change, change_text, explanation
from vramkit.lab.fragmentation.claims import CLAIMS
from vramkit.lab.fragmentation.experiment import EXTREMES, NEARLY_FULL
from vramkit.lab.fragmentation.goals import places
from vramkit.lab.fragmentation.measuring import ALONE, DRAWN, TOUCH
from vramkit.lab.fragmentation.programs import ARMS, PHASES
from vramkit.lab.goals import RULE, goal_table
from vramkit.lab.memory_plots import (
    SIZES_NOT_DRAWN,
    memory_over_time,
    peak_maps,
    without_size,
)
from vramkit.lab.ranking import measured
from vramkit.lab.result import Report
from vramkit.lab.samples import Spread
from vramkit.lab.tables import rows_of, subject_bars, subject_table
from vramkit.report.blocks import BarChart, Block, Table, Text, ValueBar

TITLES = {
    ALONE: "Allocation alone",
    TOUCH: "Allocation, and a kernel that writes the block",
    "size_range": "Sizes that differ by 10,000",
    "small_blocks": "Small blocks, of 2 to 8 KiB",
    "long_run": "A long run",
}
PHASES_TEXT = (
    "Phases 1, 3 and 5 are the first round of 100 allocations, what comes after each is the mean "
    "of 20 more: time of one allocation. Phases 2 and 4 are the mixed rounds, early and late those "
    "of a harder case: time of one call. With a kernel, the time goes on until all is written. "
    "Allocators of other libraries are called from Python, ours from C++: compare the phases of "
    "one allocator, not allocators."
)
PHASES_OVER_TIME = (
    "Phase 1 is the low start; what the mixed phase 2 leaves stays in use from then on."
)
MEMORY = ("peak_held", "average_held", "over_in_use")
MIXED = ("mix_2", "mix_4")


def blocks(report: Report) -> list[Block]:
    found: list[Block] = [claim_table(report, CLAIMS), *_arms_table(report)]
    if goals := places(report):
        found += [goal_table(report, goals), Text(RULE)]
    found.append(Text(PHASES_TEXT))
    for workload in (ALONE, TOUCH):
        for arm, words in ARMS.items():
            if rows_of(report, workload, arm):
                title = f"{TITLES[workload]}; {words}"
                found.append(_phases_chart(report, workload, arm, title))
                columns = [f"{name}_{phase}" for phase in PHASES for name in ("phase", "again")]
                found.append(subject_table(report, workload, arm, columns, ""))
                mixed = f"The mixed phases and memory; {words}"
                found.append(subject_table(report, workload, arm, (*MIXED, *MEMORY), mixed))
            if (workload, arm) == DRAWN:
                found += _over_time(report)
    for workload in EXTREMES:
        if rows_of(report, workload, ""):
            columns = ["early", "late", *MEMORY]
            if measured(report, workload, "", "blocks"):
                columns.append("blocks")
            found.append(subject_table(report, workload, "", columns, TITLES[workload]))
    if rows_of(report, NEARLY_FULL, ""):
        columns = ["one_piece", "largest", "served"]
        title = "Memory nearly used up"
        found.append(subject_table(report, NEARLY_FULL, "", columns, title))
        found.append(subject_bars(report, [(NEARLY_FULL, "")], "one_piece", title))
    return found


def _over_time(report: Report) -> list[Block]:
    rows = rows_of(report, *DRAWN)
    title = "Memory along the phases, as in the study"
    return [
        *memory_over_time(title, without_size(rows), f"{PHASES_OVER_TIME} {SIZES_NOT_DRAWN}"),
        *peak_maps(rows),
    ]


def _phases_chart(report: Report, workload: str, arm: str, title: str) -> BarChart:
    """A bar for each timed phase of each allocator."""
    bars = []
    for row in rows_of(report, workload, arm):
        for phase in PHASES:
            values = row.values.get(f"phase_{phase}")
            series = f"phase {phase}"
            if not values:
                bars.append(ValueBar(row.subject, None, series=series, why=row.outcome))
                continue
            spread = Spread.of(values)
            bars.append(ValueBar(row.subject, spread.median, spread.p10, spread.p90, series=series))
    return BarChart(title, bars, "ns", "allocator", "lower", caption="of one allocation")


def _arms_table(report: Report) -> list[Block]:
    """From phase 1 to 3 in each arm: what tells the explanations apart."""
    lines = []
    for subject in dict.fromkeys(row.subject for row in report.rows):
        texts = []
        for arm in ARMS:
            difference = change(report, subject, ALONE, arm, "phase_1", "phase_3")
            texts.append("" if difference is None else change_text(difference))
        if any(texts):
            lines.append([subject, *texts, explanation(report, subject, ALONE)])
    if not lines:
        return []
    return [Table(["allocator", *ARMS, "explanation"], lines, "From phase 1 to phase 3, alone")]
