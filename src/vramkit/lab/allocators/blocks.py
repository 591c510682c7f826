"""Tables and plots of the experiment."""

from __future__ import annotations

from vramkit.lab.allocators.cases import all_cases
from vramkit.lab.allocators.claims import CLAIMS
from vramkit.lab.allocators.experiment import ENGINES
from vramkit.lab.allocators.goals import places
from vramkit.lab.allocators.memory_limited import CARD, SIZINGS
from vramkit.lab.allocators.memory_limited import NAME as MEMORY_LIMITED
from vramkit.lab.allocators.shares import kernels_text, shares
from vramkit.lab.allocators.workloads import WORKLOADS
from vramkit.lab.claims import claim_table
from vramkit.lab.goals import RULE, goal_table
from vramkit.lab.memory_plots import memory_over_time, peak_maps
from vramkit.lab.ranking import measured, medians
from vramkit.lab.result import Report
from vramkit.lab.samples import Range
from vramkit.lab.tables import rows_of, subject_bars, subject_table
from vramkit.report.blocks import Block, Level, Table, Text
from vramkit.report.units import Unit, bytes_text, value_text

FIGURES = ("time", "pair", "first", "peak_held", "average_held", "over_in_use")
COUNTED = "memory_calls"
"""On the simulated GPU alone."""
LIMITED = ("time", "peak_held", "average_held", "over_in_use")
PARTS = ("allocation", "launch", "wait")
SPLIT = (
    "Allocation, launches and waits are host time, as parts of the workload's time (of several "
    "threads: their mean); the rest of it is the threads' own work and their waits for each other. "
    "A pair is an allocation and its free; the first round is cold, and not part of the time. "
    "Kernels is time of the card. Modelled ones: what they take one after the other, over the "
    "workload's time; above 1 several ran at a time. CuPy's: the time in which a stream had an "
    "operation under way, measured in a round of its own with clocks and events in it; what an "
    "operation waits for the host is in it, and waits have the launches of operations that read a "
    "size back."
)


def blocks(report: Report) -> list[Block]:
    found: list[Block] = [claim_table(report, CLAIMS)]
    if goals := places(report):
        found += [goal_table(report, goals), Text(RULE)]
    found.append(Text(SPLIT))
    cases = [case for case in all_cases() if rows_of(report, *case)]
    for engine in ENGINES:
        here = [case for case in cases if case[1].split(" ")[0] == engine]
        if here:
            found.append(subject_bars(report, here, "time", f"Time, {engine} engine"))
    for workload, arm in cases:
        title = f"{WORKLOADS[workload].title}: {workload}, {arm}{_in_use(report, workload, arm)}"
        columns = [*FIGURES, COUNTED] if measured(report, workload, arm, COUNTED) else FIGURES
        found.append(subject_table(report, workload, arm, columns, title))
        split = split_table(report, workload, arm)
        if split.rows:
            found.append(split)
    limited = [(MEMORY_LIMITED, sizing.arm) for sizing in SIZINGS]
    limited = [case for case in limited if rows_of(report, *case)]
    for workload, arm in limited:
        title = f"A card of 4 GiB, 3.5 GiB in use at the peak; size: {arm}"
        found.append(subject_table(report, workload, arm, LIMITED, title))
        rows, card = rows_of(report, workload, arm), Level("the card", CARD)
        over_time = f"Memory over time on the card of 4 GiB; size: {arm}"
        found += [*memory_over_time(over_time, rows, levels=[card]), *peak_maps(rows)]
    if limited:
        found.append(subject_bars(report, limited, "average_held", "Held over time, 4 GiB card"))
    return found


def _in_use(report: Report, workload: str, arm: str) -> str:
    peaks = medians(measured(report, workload, arm, "peak_in_use")).values()
    return f"; {bytes_text(round(max(peaks)))} in use at the peak" if peaks else ""


def split_table(report: Report, workload: str, arm: str) -> Table:
    """Parts of the time, by subject."""
    parts: list[tuple[dict[str, Range], Unit]] = [
        (shares(report, workload, arm, name), "share") for name in PARTS
    ]
    parts.append((shares(report, workload, arm, "kernels"), "ratio"))
    lines = []
    for row in rows_of(report, workload, arm):
        texts = [
            value_text(of[row.subject].median, unit) if row.subject in of else ""
            for of, unit in parts
        ]
        if any(texts):
            lines.append([row.subject, *texts])
    columns = ["allocator", *(report.quantities[name].title for name in PARTS), "kernels"]
    title = f"Where the time goes: {workload}, {arm}, {kernels_text([arm])}"
    return Table(columns, lines, title, [1, 2, 3, 4])
