"""Rows of a report as tables and bars, one subject below the other."""

from __future__ import annotations

from collections.abc import Sequence

from vramkit.lab.result import Report, Row
from vramkit.lab.samples import Spread
from vramkit.lab.words import spread_text, value_text
from vramkit.report.blocks import BarChart, Table, ValueBar


def rows_of(report: Report, workload: str, arm: str) -> list[Row]:
    """Of subjects that took part, or tried to."""
    return [
        row
        for row in report.rows
        if (row.workload, row.arm) == (workload, arm) and row.outcome not in ("not here", "not run")
    ]


def subject_table(
    report: Report, workload: str, arm: str, quantities: Sequence[str], title: str
) -> Table:
    """Medians; the first quantity with its spread, or the outcome of a row that has none."""
    columns = ["allocator", *(report.quantities[name].title for name in quantities)]
    lines = [
        [row.subject, *_figures(report, row, quantities)] for row in rows_of(report, workload, arm)
    ]
    return Table(columns, lines, title, list(range(1, len(columns))))


def _figures(report: Report, row: Row, quantities: Sequence[str]) -> list[str]:
    texts: list[str] = []
    for place, name in enumerate(quantities):
        quantity, values = report.quantities[name], row.values.get(name)
        if not values:
            texts.append(row.outcome if place == 0 and row.outcome != "measured" else "")
        elif place == 0:
            texts.append(spread_text(quantity, values))
        else:
            texts.append(value_text(quantity, Spread.of(values).median))
    return texts


def subject_bars(
    report: Report, cases: Sequence[tuple[str, str]], quantity: str, title: str, caption: str = ""
) -> BarChart:
    """A group of bars for each case (workload and arm)."""
    bars = []
    for workload, arm in cases:
        for row in rows_of(report, workload, arm):
            values = row.values.get(quantity)
            group = f"{workload} {arm}".strip()
            if not values:
                bars.append(ValueBar(row.subject, None, group=group, why=row.outcome))
                continue
            spread = Spread.of(values)
            bars.append(ValueBar(row.subject, spread.median, spread.p10, spread.p90, group=group))
    what = report.quantities[quantity]
    return BarChart(title, bars, what.unit, "allocator", what.better, caption=caption)
