"""Advice as a document: what was seen, what follows from it, and how to check it."""

from __future__ import annotations

from collections.abc import Sequence

import vramkit
from vramkit.lab.advise.advising import Advised
from vramkit.lab.advise.plots import plots
from vramkit.lab.advise.rules import Advice, Verdict
from vramkit.report.blocks import (
    Block,
    Callout,
    Code,
    Document,
    Figure,
    Figures,
    Section,
    Table,
    Text,
    Tone,
)
from vramkit.report.units import bytes_text, count_text, percent_text, rate_text, time_text

TONES: dict[Verdict, Tone] = {
    "do": "bad",
    "consider": "warning",
    "no need": "good",
    "cannot say": "note",
}
SUMMARY = (
    "Derived from one recorded run by stated rules. What vramkit's pool holds comes from a replay "
    "on the simulated GPU, which counts memory as a card does; no time of an allocator was taken "
    "from it. Predictions are to be checked: each piece of advice says how."
)


def document(file: str, advised: Sequence[Advised], profile: str) -> Document:
    card = advised[0].card
    return Document(
        title=f"vramkit advise: {file}",
        summary=SUMMARY,
        facts=[
            ("For", card.name),
            ("Link", rate_text(card.link_bytes_per_s)),
            ("Made", f"vramkit {vramkit.__version__}"),
        ],
        sections=[Section(each.observed.name, _blocks(each)) for each in advised],
        simulated=profile,
    )


def _blocks(advised: Advised) -> list[Block]:
    blocks: list[Block] = [_figures(advised), *plots(advised)]
    for advice in advised.advice:
        blocks += _advice(advice)
    return blocks


def _figures(advised: Advised) -> Figures:
    seen = advised.observed
    asked = "asked of the driver" if seen.level == "driver" else "in use"
    items = [Figure(bytes_text(seen.peak), f"{asked}, at most")]
    if seen.level == "tensors":
        items.append(Figure(bytes_text(seen.lasting), "of it last"))
        if seen.held is not None:
            items.append(Figure(bytes_text(seen.held), "held by the program's allocator"))
        if advised.pooled is not None:
            items.append(Figure(bytes_text(advised.pooled.held), "held by vramkit's pool"))
    items.append(Figure(f"{seen.allocations:,}", "allocations"))
    if seen.timing is not None:
        items.append(Figure(time_text(seen.timing.seconds), "from the first call to the last"))
        items.append(Figure(percent_text(seen.timing.idle_share), "without a kernel, at least"))
    return Figures(items)


def _advice(advice: Advice) -> list[Block]:
    blocks: list[Block] = [Callout(TONES[advice.verdict], advice.title, advice.text)]
    if advice.predicted:
        rows = [[each.what, f"{each.bound} {each.shown}"] for each in advice.predicted]
        blocks.append(Table(["predicted", ""], rows, numeric=[1]))
    if advice.check:
        blocks.append(Code("How to check it", "\n".join(advice.check), language="text"))
    blocks.append(Text(f"By this rule: {advice.rule}."))
    return blocks


def counted(advised: Sequence[Advised]) -> str:
    """For the end of the command: "2 things to do, 1 to consider"."""
    verdicts = [advice.verdict for each in advised for advice in each.advice]
    to_do, to_consider = verdicts.count("do"), verdicts.count("consider")
    if not to_do and not to_consider:
        return "nothing to do"
    return f"{count_text(to_do, 'thing')} to do, {to_consider} to consider"
