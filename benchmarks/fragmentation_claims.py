"""Seed 001's claims beside the four phases that allocators.py measured on a card."""

from __future__ import annotations

import msgspec
from allocator_table import Report
from rows import Row

from vramkit.report.blocks import Table

SUBJECTS = {"pool": "RMM's pool", "async": "RMM's async", "arena": "RMM's arena"}
CLAIMED = {"pool": -0.142, "async": 0.032, "arena": 0.031}
UNDER = 0.05
SAME_SIZE = 2.0  # a change of half to twice the claimed one, in its direction, confirms it


def table(report: Report) -> Table:
    rows = [["100 allocations take 23.4 to 27.9 ms: 234 to 279 us each", *_cost(report)]]
    for name, claimed in CLAIMED.items():
        word = "faster" if claimed < 0 else "slower"
        claim = f"{name} gets {abs(claimed):.1%} {word} in the long run".replace("%", " %")
        rows.append([claim, *_changed(report, name, claimed)])
    rows.append(["all changes are under 5 %", *_all_under(report)])
    return Table(["claim", "verdict", "on the card"], rows)


def _row(report: Report, workload: str, allocator: str) -> Row:
    return next(
        row for row in report.rows if (row.workload, row.allocator) == (workload, allocator)
    )


def _median(row: Row) -> float:
    if row.median is None:
        raise ValueError(f"{row.workload} of {row.allocator} has no figure")
    return row.median


def _cost(report: Report) -> list[str]:
    found = [
        f"{title} {_median(_row(report, 'phases/alone/1', f'rmm_{name}')):,.0f} ns, "
        f"{_median(_row(report, 'phases/touch/1', f'rmm_{name}')):,.0f} ns with a kernel"
        for name, title in SUBJECTS.items()
    ]
    return ["not confirmed", f"{'; '.join(found)}: the study timed more than allocation"]


def _change(report: Report, how: str, allocator: str) -> tuple[float, float, float]:
    """Phase 4 over phase 1, less 1: of each repetition, their median, and the spread of that."""
    row = _row(report, f"phases/{how}", allocator)
    return _median(row) - 1, (row.p10 or 0) - 1, (row.p90 or 0) - 1


def _changed(report: Report, name: str, claimed: float) -> list[str]:
    figures, confirmed = [], []
    for how, words in (("alone", "alone"), ("touch", "with a kernel")):
        middle, low, high = _change(report, how, f"rmm_{name}")
        figures.append(f"{words} {middle:+.1%} ({low:+.1%} to {high:+.1%})".replace("%", " %"))
        beyond = low > 0 or high < 0
        ratio = middle / claimed
        confirmed.append(beyond and 1 / SAME_SIZE <= ratio <= SAME_SIZE)
    verdict = "confirmed" if all(confirmed) else "in part" if any(confirmed) else "not confirmed"
    return [verdict, f"{SUBJECTS[name]}: {'; '.join(figures)}"]


def _all_under(report: Report) -> list[str]:
    names = sorted({row.allocator for row in report.rows if row.workload == "phases/alone"})
    over = []
    for name in names:
        middles = [_change(report, how, name)[0] for how in ("alone", "touch")]
        if any(abs(middle) >= UNDER for middle in middles):
            shown = ", ".join(f"{middle:+.1%}".replace("%", " %") for middle in middles)
            over.append(f"{name} {shown}")
    verdict = "not confirmed" if over else "confirmed"
    under = [name for name in names if not any(each.startswith(f"{name} ") for each in over)]
    return [verdict, f"alone, with a kernel: {'; '.join(over)}; under it: {', '.join(under)}"]


def load_allocators(content: bytes) -> Report:
    return msgspec.json.decode(content, type=Report)
