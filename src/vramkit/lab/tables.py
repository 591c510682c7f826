"""Rows of a report as tables and bars, one subject below the other."""

from __future__ import annotations

from collections.abc import Sequence

from vramkit.lab.result import Report, Row
from vramkit.lab.samples import Spread
from vramkit.report.blocks import BarChart, Table, ValueBar
from vramkit.report.units import value_text


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
    """Medians; the first quantity with its spread, or why there is none."""
    columns = ["allocator", *(report.quantities[name].title for name in quantities), "remark"]
    lines = [
        [row.subject, *_figures(report, row, quantities), _remark(row)]
        for row in rows_of(report, workload, arm)
    ]
    return Table(columns, lines, title, list(range(1, len(quantities) + 1)))


def _figures(report: Report, row: Row, quantities: Sequence[str]) -> list[str]:
    texts = []
    for place, name in enumerate(quantities):
        values = row.values.get(name)
        if not values:
            texts.append("")
            continue
        unit = report.quantities[name].unit
        spread = Spread.of(values)
        text = value_text(_whole(spread.median, unit), unit)
        if place == 0 and spread.p90 > spread.p10:
            text += f" ({value_text(spread.p10, unit)} to {value_text(spread.p90, unit)})"
        texts.append(text)
    return texts


def _whole(value: float, unit: str) -> float:
    return round(value) if unit == "bytes" else value


def _remark(row: Row) -> str:
    return "" if row.outcome == "measured" else f"{row.outcome}: {row.why}".rstrip(": ")


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
            bars.append(
                ValueBar(row.subject, spread.median, spread.p10, spread.p90, group=group)
            )
    what = report.quantities[quantity]
    return BarChart(title, bars, what.unit, "allocator", what.better, caption=caption)
