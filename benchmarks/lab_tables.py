"""The tables of the lab's pages: medians with their spread, and the goals row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from lab_reasons import ON_CARD, SIMULATED

from vramkit.lab.allocators.cases import all_cases
from vramkit.lab.allocators.experiment import ENGINES
from vramkit.lab.allocators.judges import ALL as WORKLOADS
from vramkit.lab.allocators.memory_limited import NAME as MEMORY_LIMITED
from vramkit.lab.allocators.memory_limited import SIZINGS
from vramkit.lab.claims import range_text
from vramkit.lab.fragmentation.changes import change, change_text, explanation
from vramkit.lab.fragmentation.experiment import EXTREMES, NEARLY_FULL
from vramkit.lab.fragmentation.measuring import ALONE, TOUCH
from vramkit.lab.fragmentation.programs import ARMS, PHASES
from vramkit.lab.goals import HELD, Place, counted
from vramkit.lab.ranking import measured, medians, percent
from vramkit.lab.result import Report
from vramkit.lab.samples import Range
from vramkit.lab.subjects import SUBJECTS
from vramkit.lab.words import spread_text

Line = list[str]
MEMORY = (HELD, "average_held")
UNKNOWN = "not known yet"
"""The reason of a row that is missed and has none in lab_reasons.py."""


def markdown(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"|{''.join(f' {cell} |' if cell else ' |' for cell in row)}" for row in rows)


def figure(report: Report, workload: str, arm: str, subject: str, quantity: str) -> str:
    """Median and spread; for the time else how it ended, where it took part."""
    row = report.row(workload, subject, arm)
    if row is None or row.outcome in ("not here", "not run"):
        return ""
    if values := row.values.get(quantity):
        return spread_text(report.quantities[quantity], values)
    return "" if row.outcome == "measured" or quantity in MEMORY else row.outcome


def allocator_table(report: Report) -> str:
    """Of each engine that the report has: times, allocation's share, and memory; then the card of 4
    GiB."""
    tables = [_engine_table(report, engine) for engine in engines(report)]
    if limited := _memory_limited(report):
        tables.append(limited)
    return "\n\n".join(tables)


def _engine_table(report: Report, engine: str) -> str:
    cases = [case for case in all_cases(engine) if measured(report, *case, "time")]
    names = _names(report, cases)
    times = f"time{' (simulated)' if report.simulated else ''}"
    lines = [
        [_case(*case), *_once(times, number), *_cells(report, case, names, "time")]
        for number, case in enumerate(cases)
    ]
    shares = [_middle(allocation_shares(report, each, engine)) for each in names]
    lines.append(["allocation's share, middle of the workloads", "", *shares])
    lines += _held_lines(report, cases, names)
    return markdown([f"case, `{engine}`", "", *names], lines)


def _held_lines(
    report: Report, cases: Sequence[tuple[str, str]], names: Sequence[str]
) -> list[Line]:
    """What a size was given for holds that, whatever is in use."""
    lines = []
    for number, case in enumerate(cases):
        cells = [
            "taken ahead" if SUBJECTS[name].needs_size and text else text
            for name, text in zip(names, _cells(report, case, names, HELD), strict=True)
        ]
        lines.append([_case(*case), *_once("peak held / in use", number), *cells])
    return lines


def _memory_limited(report: Report) -> str:
    """Who takes no size has one row."""
    cases = [(MEMORY_LIMITED, sizing.arm) for sizing in SIZINGS]
    names = _names(report, cases)
    what = {"time": "time", HELD: "peak held / in use", "average_held": "mean held"}
    if report.simulated:
        what["time"] += " (simulated)"
    lines = [
        [f"size: {case[1]}" if quantity == "time" else "", words, *cells]
        for case in cases
        for quantity, words in what.items()
        if any(cells := _cells(report, case, names, quantity))
    ]
    return markdown([f"`{MEMORY_LIMITED}`", "", *names], lines) if names else ""


def _names(report: Report, cases: Sequence[tuple[str, str]]) -> list[str]:
    """Of the subjects that have a figure, or tried to."""
    tried = {
        row.subject
        for row in report.rows
        if (row.workload, row.arm) in cases and row.outcome not in ("not here", "not run")
    }
    return [name for name in SUBJECTS if name in tried]


def _case(workload: str, arm: str) -> str:
    """Without the engine, which the table has."""
    first, _, rest = arm.partition(" ")
    variant = rest if first in ENGINES else arm
    return f"`{workload}`{f', {variant}' if variant else ''}"


def _once(words: str, number: int) -> Line:
    return ["" if number else words]


def _cells(report: Report, case: tuple[str, str], names: Sequence[str], quantity: str) -> Line:
    return [figure(report, *case, name, quantity) for name in names]


def engines(report: Report) -> list[str]:
    """That worked on the tables; the nearest to real ones last."""
    arms = {row.arm for row in report.rows if row.values}
    return [engine for engine in ENGINES if engine in arms]


def allocation_shares(report: Report, subject: str, engine: str) -> list[float]:
    """Of each workload's time."""
    found = []
    for workload in WORKLOADS:
        allocation, time = (
            medians(measured(report, workload.name, engine, quantity))
            for quantity in ("allocation", "time")
        )
        if subject in allocation and time.get(subject):
            found.append(allocation[subject] / time[subject])
    return found


def _middle(shares: list[float]) -> str:
    return percent(median(shares)) if shares else ""


def fragmentation_table(report: Report, million: Report | None) -> str:
    names = [
        each for each in SUBJECTS if any(row.values and row.subject == each for row in report.rows)
    ]

    def line(head: str, what: str, cell: Callable[[str], str]) -> Line:
        return [head, what, *(cell(each) for each in names)]

    def figures(workload: str, arm: str, quantity: str) -> Callable[[str], str]:
        return lambda name: figure(report, workload, arm, name, quantity)

    def part(workload: str, arm: str, quantity: str) -> Callable[[str], str]:
        found = measured(report, workload, arm, quantity)
        return lambda name: range_text(Range.of(found[name]), percent) if name in found else ""

    def changed(source: Report, workload: str) -> Callable[[str], str]:
        def cell(name: str) -> str:
            difference = change(source, name, workload, "", "early", "late")
            row = source.row(workload, name)
            if difference is None:
                return row.outcome if row is not None and not row.values else ""
            return change_text(difference)

        return cell

    lines = []
    for arm in ARMS:
        for phase in PHASES:
            head = f"`{arm}`" if phase == PHASES[0] else ""
            lines.append(line(head, f"phase {phase}", figures(ALONE, arm, f"phase_{phase}")))
    lines.append(line("explanation", "", lambda name: explanation(report, name, ALONE)))
    for workload in EXTREMES:
        lines.append(
            line(f"`{workload}`{_count(report, workload)}", "late", changed(report, workload))
        )
    if million is not None:
        head = f"`small_blocks`{_count(million, 'small_blocks')}"
        lines.append(line(head, "late", changed(million, "small_blocks")))
    for what, quantity in (("largest block / free", "one_piece"), ("served", "served")):
        head = f"`{NEARLY_FULL}`" if quantity == "one_piece" else ""
        lines.append(line(head, what, part(NEARLY_FULL, "", quantity)))
    cases: list[tuple[str, str]] = [(workload, arm) for workload in (ALONE, TOUCH) for arm in ARMS]
    lines += _held_lines(report, [*cases, *((workload, "") for workload in EXTREMES)], names)
    return markdown(["`alone`", "", *names], lines)


def _count(report: Report, workload: str) -> str:
    counts = medians(measured(report, workload, "", "blocks")).values()
    return f", {max(counts):,.0f}" if counts else ""


def goal_table(report: Report, places: Sequence[Place]) -> str:
    """Row by row, with the reason where one is missed."""
    lines = [
        [
            each.row,
            report.quantities[each.quantity].title,
            f"**{each.mark}**" if each.mark == "missed" else each.mark,
            each.figures,
            reason(report, each) if each.mark == "missed" else "",
        ]
        for each in places
    ]
    table = markdown(["row", "figure", "goal", "figures", "reason"], lines)
    words = counted(places)
    return f"{words[:1].upper()}{words[1:]}.\n\n{table}"


def reason(report: Report, each: Place) -> str:
    known = SIMULATED if report.simulated else ON_CARD
    return known.get((report.experiment, each.workload, each.arm, each.quantity), UNKNOWN)
