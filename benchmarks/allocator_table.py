"""The result of the allocator benchmark as Markdown."""

from typing import Any

import msgspec
from allocator_goals import Verdict, beyond_cap, fair
from allocator_held import held_section
from rows import Row


class Report(msgspec.Struct):
    benchmark: str
    simulated: bool
    device: str
    driver_version: int
    settings: dict[str, Any] | None
    machine: dict[str, Any]
    packages: dict[str, str]
    date: str
    complete: bool
    missing: list[str]
    verdicts: list[Verdict]
    rows: list[Row]


def figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 100 or unit == "MiB" else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def spread(row: Row | Verdict) -> str:
    if row.p10 is None or row.p90 is None:
        return ""
    return f" ({figure(row.p10, '').strip()} to {figure(row.p90, '').strip()})"


def markdown(report: Report) -> str:
    met = sum(verdict.met for verdict in report.verdicts)
    lines = [
        f"{report.device}, {report.machine['cpu']}, {report.date[:10]}; medians with p10 to p90. "
        f"{met} of {len(report.verdicts)} goals met.",
        "",
        "| workload | ours | goal | met | best of the others | against it | note |",
        "|---|---:|---:|---|---:|---|---|",
    ]
    for verdict in report.verdicts:
        goal = "first" if verdict.goal is None else f"<= {figure(verdict.goal, verdict.unit)}"
        peer = f"{verdict.best_peer} {figure(verdict.peer, verdict.unit)}".strip()
        lines.append(
            f"| {verdict.words} | {figure(verdict.ours, verdict.unit)}{spread(verdict)} | {goal} "
            f"| {'yes' if verdict.met else 'no'} | {peer} "
            f"| {verdict.place} | {verdict.note} |"
        )
    allocators = list(dict.fromkeys(row.allocator for row in report.rows))
    lines += ["", f"| all rows | {' | '.join(allocators)} |", "|---|" + "---:|" * len(allocators)]
    for workload in dict.fromkeys(row.workload for row in report.rows):
        cells = []
        for allocator in allocators:
            row = next(
                (r for r in report.rows if (r.workload, r.allocator) == (workload, allocator)), None
            )
            if row is None:
                cells.append("")
            elif row.median is None:
                cells.append(row.outcome or "failed")
            else:
                flaw = "beyond the cap" if beyond_cap(row) else "" if fair(row) else row.outcome
                cells.append(", ".join(filter(None, [figure(row.median, row.unit), flaw])))
        lines.append(f"| {workload} | {' | '.join(cells)} |")
    if held := held_section(report.rows):
        lines += ["", *held]
    if report.missing:
        lines += ["", "Missing: " + "; ".join(report.missing) + "."]
    return "\n".join(lines)
