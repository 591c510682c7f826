"""Seed 001's claims beside the four phases that allocators.py measured on a card."""

from __future__ import annotations

import msgspec
from allocator_table import Report
from rows import Row

from vramkit.lab.samples import Spread
from vramkit.report.blocks import Table

LAST = 4
AFTER_50_ROUNDS = 3
SUBJECTS = {"pool": "RMM's pool", "async": "RMM's async", "arena": "RMM's arena"}
CLAIMED = {
    AFTER_50_ROUNDS: ("after 50 rounds", {"pool": -0.080, "async": 0.029, "arena": -0.029}),
    LAST: ("in the long run", {"pool": -0.142, "async": 0.032, "arena": 0.031}),
}
"""Against the first phase, by the number of the phase."""
TENTH = 0.01
UNDER = 0.05
SAME_SIZE = 2.0  # a change of half to twice the claimed one, in its direction, confirms it


def table(report: Report) -> Table:
    rows = [["100 allocations take 23.4 to 27.9 ms: 234 to 279 us each", *_cost(report)]]
    for phase, (when, changes) in CLAIMED.items():
        for name, claimed in changes.items():
            word = "faster" if claimed < 0 else "slower"
            claim = f"{name} gets {abs(claimed):.1%} {word} {when}".replace("%", " %")
            rows.append([claim, *_changed(report, name, claimed, phase)])
    rows.append(["all changes are under 5 %", *_all_under(report)])
    rows.append(["allocation that is 10 % slower costs less than 1 %", *_a_tenth(report)])
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


def _change(
    report: Report, how: str, allocator: str, phase: int = LAST
) -> tuple[float, float, float]:
    """A phase over phase 1, less 1: of each repetition, their median, and the spread of that."""
    if phase == LAST:
        row = _row(report, f"phases/{how}", allocator)
        return _median(row) - 1, (row.p10 or 0) - 1, (row.p90 or 0) - 1
    first, later = (_row(report, f"phases/{how}/{each}", allocator) for each in (1, phase))
    ratios = [after / before for before, after in zip(first.values, later.values, strict=True)]
    spread = Spread.of(ratios)
    return spread.median - 1, spread.p10 - 1, spread.p90 - 1


def _changed(report: Report, name: str, claimed: float, phase: int) -> list[str]:
    figures, confirmed = [], []
    for how, words in (("alone", "alone"), ("touch", "with a kernel")):
        middle, low, high = _change(report, how, f"rmm_{name}", phase)
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


def _a_tenth(report: Report) -> list[str]:
    """Of the time of an allocation and the kernel that writes its block."""
    costs = {}
    for name, title in SUBJECTS.items():
        alone, touched = (
            _median(_row(report, f"phases/{how}/{LAST}", f"rmm_{name}"))
            for how in ("alone", "touch")
        )
        costs[title] = 0.1 * alone / touched
    figures = "; ".join(f"{title} {cost:.2%}".replace("%", " %") for title, cost in costs.items())
    under = [cost < TENTH for cost in costs.values()]
    verdict = "confirmed" if all(under) else "in part" if any(under) else "not confirmed"
    return [verdict, f"of the time with a kernel, in phase {LAST}: {figures}"]


def load_allocators(content: bytes) -> Report:
    return msgspec.json.decode(content, type=Report)
