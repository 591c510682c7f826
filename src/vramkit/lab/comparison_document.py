"""A comparison as a document, for the terminal and as a page."""

from __future__ import annotations

import math

from vramkit.lab.compare import Change, Comparison, Judgement, OneSided
from vramkit.lab.samples import FEWEST, NOISE, Difference
from vramkit.lab.words import value_text
from vramkit.report.blocks import Block, Callout, Document, Section, Table, Text, Tone
from vramkit.report.units import count_text

RULE = (
    "A figure is lower or higher where the percentiles of its repetitions (10 and 90) do not "
    f"overlap, the medians are more than {NOISE * 100:g} % apart, and both results have at least "
    f"{FEWEST} repetitions, or two that are exactly the same."
)
ORDER: tuple[Judgement, ...] = ("worse", "better", "other", "too few", "no difference")
SHOWN: tuple[Judgement, ...] = ("worse", "better", "other")
WORDS: dict[Judgement, str] = {"other": "changed", "no difference": "within spread"}


def document(comparison: Comparison, old: str, new: str, *, everything: bool) -> Document:
    """`old` and `new` are what the two results are called, `everything` has all figures."""
    parts: list[tuple[str, list[Block]]] = [
        ("What else differs", _differs(comparison)),
        ("What changed", _changed(comparison, everything)),
        ("What was measured in one of them only", _one_sided(comparison.one_sided)),
    ]
    return Document(
        title=f"vramkit lab compare: {comparison.experiment}",
        summary=RULE,
        facts=[("Old", old), ("New", new)],
        sections=[Section(title, blocks) for title, blocks in parts if blocks],
        simulated="both results" if comparison.simulated else None,
    )


def _differs(comparison: Comparison) -> list[Block]:
    if not comparison.differs:
        return []
    return [
        Callout(
            "warning",
            "The runs differ in more than their figures.",
            "A change below may come from this.",
        ),
        Table(["", "old", "new"], [list(each) for each in comparison.differs]),
    ]


def _changed(comparison: Comparison, everything: bool) -> list[Block]:
    count = {each: 0 for each in ORDER}
    for change in comparison.changes:
        count[change.judgement] += 1
    if not comparison.changes:
        return [Callout("note", "No figure is in both results.")]
    words = [
        f"{count['worse']} worse",
        f"{count['better']} better",
        *([f"{count['other']} changed"] if count["other"] else []),
        f"{count['no difference']} within the spread",
        *([f"{count['too few']} with too few repetitions"] if count["too few"] else []),
    ]
    tone: Tone = "bad" if count["worse"] else "good" if count["better"] else "note"
    found: list[Block] = [
        Callout(tone, f"{count_text(len(comparison.changes), 'figure')}: {', '.join(words)}.")
    ]
    shown = [each for each in comparison.changes if everything or each.judgement in SHOWN]
    shown.sort(key=lambda each: (ORDER.index(each.judgement), -abs(each.difference.relative)))
    if shown:
        columns = ["case", "subject", "figure", "old", "new", "change", ""]
        rows = [_row(each, comparison) for each in shown]
        found.append(Table(columns, rows, numeric=[3, 4, 5]))
        found.append(Text("In brackets: from the percentiles at their far and near ends."))
    return found


def _row(change: Change, comparison: Comparison) -> list[str]:
    quantity = comparison.quantities[change.quantity]
    return [
        _case(change.workload, change.arm),
        change.subject,
        quantity.title,
        value_text(quantity, change.old.median),
        value_text(quantity, change.new.median),
        _change(change.difference),
        WORDS.get(change.judgement, change.judgement),
    ]


def _one_sided(rows: list[OneSided]) -> list[Block]:
    if not rows:
        return []
    lines = [
        [
            _case(row.workload, row.arm),
            row.subject,
            row.side,
            row.outcome,
            row.why,
            "worse" if row.worse else "",
        ]
        for row in rows
    ]
    return [Table(["case", "subject", "measured in", "in the other", "why", ""], lines)]


def _case(workload: str, arm: str) -> str:
    return f"{workload}, {arm}" if arm else workload


def _change(difference: Difference) -> str:
    """ "+1.2 % (-0.5 to +2.0)" """
    middle, least, most = (
        "from zero" if part == math.inf else f"{part * 100:+.1f}"
        for part in (difference.relative, difference.least, difference.most)
    )
    percent = "" if difference.relative == math.inf else " %"
    return f"{middle}{percent}" + ("" if least == most else f" ({least} to {most})")
