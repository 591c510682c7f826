"""A sweep of plans as a table in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vramkit.report.blocks import Block, Callout, Table, Text
from vramkit.report.units import bytes_text, count_text, percent_text, time_text
from vramkit.weights.planner.sweep_result import PlanSweep, Row

if TYPE_CHECKING:
    from rich.console import Console

AXES = ["model", "card", "budget", "policy", "ranks"]
FIGURES = ["a pass", "of bound", "limit", "link", "memory", ""]
BEST = (
    "best: the shortest pass of its model, card and ranks; of equal ones the one with the least "
    "memory."
)


def print_sweep(console: Console, sweep: PlanSweep) -> None:
    from rich.text import Text as RichText

    from vramkit.report.terminal import print_block

    plans = count_text(len(sweep.rows), "plan")
    console.print(RichText.assemble(("vramkit plan", "bold"), f": {plans} (simulated)"))
    for block in blocks(sweep):
        print_block(console, block)


def varying(rows: Sequence[Row]) -> list[bool]:
    """By axis: whether it has several values."""
    cells = [_cell(row) for row in rows]
    return [len({cell[axis] for cell in cells}) > 1 for axis in range(len(AXES))]


def row_line(row: Row, varies: Sequence[bool]) -> str:
    """A plan by itself, when it is made: which one is best is not known yet."""
    values = [*_cell(row)[:-1], f"{row.ranks} ranks" if row.ranks > 1 else "1 rank"]
    name = ", ".join(value for value, several in zip(values, varies, strict=True) if several)
    if row.plan is None:
        return f"{name}: {row.outcome}, {row.why}"
    a_pass, of_bound, limit, _, memory, _ = _figures(row)
    told = [f"{a_pass} a pass", f"{of_bound} of the bound" if of_bound else "", limit, memory]
    return f"{name}: {', '.join(filter(None, told))}"


def blocks(sweep: PlanSweep) -> Iterator[Block]:
    if sweep.stopped:
        text = f"{sweep.planned} of {count_text(len(sweep.rows), 'plan')} have figures."
        yield Callout("warning", f"This sweep ended early: {sweep.stopped}.", text)
    cells = [_cell(row) for row in sweep.rows]
    # What is the same for all stands above the table.
    varies = varying(sweep.rows)
    facts = [
        [name, value]
        for name, value, several in zip(AXES, cells[0], varies, strict=True)
        if not several and (name, value) != ("ranks", "1")
    ]
    facts += [[f"note on {model.model}", note] for model in sweep.models for note in model.notes]
    if facts:
        yield Table(["", ""], facts)
    columns = [name for name, several in zip(AXES, varies, strict=True) if several]
    rows = [
        [value for value, several in zip(cell, varies, strict=True) if several] + _figures(row)
        for row, cell in zip(sweep.rows, cells, strict=True)
    ]
    numeric = [len(columns) + number for number in (0, 1, 3, 4)]
    yield Table([*columns, *FIGURES], rows, numeric=numeric)
    if sweep.planned:
        yield Text(BEST)
    if reasons := _reasons(sweep):
        yield Table(["without figures", "why"], reasons)


def _cell(row: Row) -> list[str]:
    return [row.model, row.profile, row.budget, row.policy, str(row.ranks)]


def _name(row: Row) -> str:
    *cell, ranks = _cell(row)
    return ", ".join(cell if row.ranks == 1 else [*cell, f"{ranks} ranks"])


def _figures(row: Row) -> list[str]:
    plan = row.plan
    if plan is None:
        return ["", "", "", "", "", row.outcome]
    return [
        time_text(plan.pass_s),
        f"{plan.pass_s / plan.bound_s:.3f}" if plan.bound_s else "",
        plan.limit if plan.streamed_bytes else "resident",
        percent_text(plan.link_utilisation),
        bytes_text(plan.device_bytes),
        "best" if row.best else "",
    ]


def _reasons(sweep: PlanSweep) -> list[list[str]]:
    """Each with the first plan that it kept from being made."""
    found: dict[str, list[Row]] = {}
    for row in sweep.rows:
        if row.why:
            found.setdefault(row.why, []).append(row)
    return [
        [_name(rows[0]) + (f", and {len(rows) - 1} more" if rows[1:] else ""), why]
        for why, rows in found.items()
    ]
