"""A plan as tables and sentences in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from vramkit.report.blocks import Block, Callout, Figure, Figures, Table, Text
from vramkit.report.units import bytes_text, count_text, percent_text, rate_text, time_text
from vramkit.weights.planner.result import SAME, Plan, Prediction, Refused

if TYPE_CHECKING:
    from rich.console import Console

GIB = 1 << 30


def print_plan(console: Console, plan: Plan) -> None:
    from rich.text import Text as RichText

    from vramkit.report.terminal import print_block

    card = f"{plan.card.removesuffix(' (simulated)')} (simulated, profile {plan.profile})"
    console.print(RichText.assemble(("vramkit plan", "bold"), " on ", (card, "cyan")))
    for block in blocks(plan):
        print_block(console, block)


def blocks(plan: Plan) -> Iterator[Block]:
    chosen = plan.chosen
    yield _facts(plan)
    yield Figures(
        [
            Figure(time_text(chosen.pass_s), "a pass", "good"),
            Figure(time_text(chosen.first_pass_s), "the first"),
            Figure(time_text(chosen.bound_s), f"bound ({chosen.limit})"),
            Figure(percent_text(chosen.link_utilisation), "of the link"),
        ]
    )
    near = not chosen.streamed_bytes or chosen.pass_s <= 1.02 * chosen.bound_s
    yield Callout("good" if near else "warning", plan.verdict)
    if plan.timeline is not None:
        yield plan.timeline
    if plan.policies:
        yield _policies(plan)
    if plan.best_split is not None:
        yield _splits(plan)
        yield Text(_advice(plan, plan.splits[plan.best_split]))
    if len(plan.budgets) > 1:
        yield _budgets(plan)


def _facts(plan: Plan) -> Table:
    chosen = plan.chosen
    groups = f"{count_text(plan.layers, 'layer')}, {count_text(plan.groups, 'group')}"
    memory = (
        f"{bytes_text(chosen.device_bytes)} of a budget of {bytes_text(chosen.budget)}: ring "
        f"{bytes_text(chosen.ring_bytes)}, resident {bytes_text(chosen.resident_bytes)}, kept "
        f"{bytes_text(chosen.kept_bytes)}"
    )
    rows = [
        ["model", f"{plan.model}: {bytes_text(plan.weight_bytes)} of weights, {groups}"],
        ["compute", _compute(plan)],
        ["memory", memory],
        [
            "link",
            f"{bytes_text(chosen.sent_bytes)} a pass at {rate_text(plan.link_bytes_per_s)}: "
            f"{time_text(chosen.link_s)}",
        ],
        *_gather(plan),
        ["policy", chosen.policy],
        *(["note", note] for note in plan.notes),
    ]
    return Table(["", ""], rows)


def _gather(plan: Plan) -> Iterator[list[str]]:
    if plan.gather_bytes_per_s is None:
        return
    chosen = plan.chosen
    others = bytes_text(chosen.streamed_bytes - chosen.sent_bytes)
    yield [
        "ranks",
        f"{chosen.ranks} cards, each with a link; {others} a pass from the others at "
        f"{rate_text(plan.gather_bytes_per_s)}: {time_text(chosen.gather_s)}",
    ]


def _compute(plan: Plan) -> str:
    text = f"{time_text(plan.chosen.computed_s)} a pass"
    if plan.tokens is not None:
        text += f" of {plan.batch} x {plan.tokens:,} tokens"
    if plan.compute_from == "given":
        return f"{text}, as given for each group"
    if plan.compute_from == "measured pass":
        by = "bytes" if plan.rates is None else "the profile's rates"
        return f"{text}, from one measured pass, divided among groups by {by}"
    assert plan.rates is not None
    return (
        f"{text}, by the profile's rates for bf16: matmul "
        f"{plan.rates.matmul_flops_per_s / 1e12:.0f} Tflop/s, attention "
        f"{plan.rates.attention_flops_per_s / 1e12:.0f} Tflop/s, weights read at "
        f"{rate_text(plan.rates.weights_bytes_per_s)}"
    )


def _over(row: Prediction) -> str:
    return f"{row.pass_s / row.bound_s:.3f}" if row.bound_s else ""


def _policies(plan: Plan) -> Table:
    rows = []
    for row in plan.policies:
        if isinstance(row, Refused):
            rows.append([row.policy, "", "", "", "", row.why])
        else:
            rows.append(
                [
                    row.policy,
                    time_text(row.pass_s),
                    _over(row),
                    time_text(row.first_pass_s),
                    bytes_text(row.ring_bytes),
                    "",
                ]
            )
    columns = ["policy", "a pass", "of its bound", "the first", "ring", ""]
    if all(isinstance(row, Prediction) for row in plan.policies):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    title = f"Policies, with {bytes_text(plan.chosen.budget)} (simulated)"
    return Table(columns, rows, title, [1, 2, 3, 4])


def _splits(plan: Plan) -> Table:
    rows = [
        [
            bytes_text(row.ring_bytes),
            bytes_text(row.resident_bytes),
            time_text(row.pass_s),
            _over(row),
            "best" if number == plan.best_split else "",
        ]
        for number, row in enumerate(plan.splits)
    ]
    title = "Ring and residents, in the same budget (simulated)"
    return Table(["ring", "resident", "a pass", "of its bound", ""], rows, title, [0, 1, 2, 3])


def _advice(plan: Plan, best: Prediction) -> str:
    if best == plan.chosen:
        return "No other ring is better than this one by more than 0.1 %."
    saved = 1 - best.pass_s / plan.chosen.pass_s
    return f"`ring={best.ring}` in `offload()` would save {saved * 100:.1f} % of a pass."


def _budgets(plan: Plan) -> Table:
    """What each GiB between two rows saves stands in the second of them."""
    saved = [""]
    for less, more in pairwise(plan.budgets):
        gib = (more.budget - less.budget) / GIB
        gain = less.pass_s - more.pass_s
        saved.append(time_text(gain / gib) if gain > SAME * less.pass_s else "nothing")
    rows = [
        [
            bytes_text(row.budget),
            bytes_text(row.streamed_bytes),
            time_text(row.pass_s),
            each,
            _remark(plan, row),
        ]
        for row, each in zip(plan.budgets, saved, strict=True)
    ]
    columns = ["budget", "streamed", "a pass", "saved by each GiB", ""]
    return Table(columns, rows, "What more memory buys (simulated)", [0, 1, 2, 3])


def _remark(plan: Plan, row: Prediction) -> str:
    if row.budget == plan.chosen.budget:
        return "this plan"
    if not row.streamed_bytes:
        return "all resident"
    return "the least" if row is plan.budgets[0] else ""
