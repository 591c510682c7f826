"""Rows of repetitions that end in any order, and what a report says of where they were measured."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from vramkit.lab.catalog import find
from vramkit.lab.compare import compare_reports
from vramkit.lab.document import document
from vramkit.lab.experiment import Case
from vramkit.lab.remote import note_site
from vramkit.lab.result import Report, Site
from vramkit.lab.rows import Rows
from vramkit.lab.worker import Ended
from vramkit.report.blocks import Callout, Text

from .runs import MACHINE, PROGRAMS, report, row

CASE = Case("work")


def measured(value: float) -> Ended:
    return Ended(0, "measured", {"time": value}, series={"held": [value]})


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_in_which_repetitions_end_leaves_no_trace(order: tuple[int, ...]) -> None:
    ends = [
        {"good": measured(1.0), "late": measured(4.0), "early": Ended(0, "failed", why="broken")},
        {
            "good": measured(2.0),
            "late": Ended(0, "out of memory", why="full"),
            "early": measured(7),
        },
        {"good": measured(3.0), "late": measured(6.0), "early": measured(8.0)},
    ]
    found = report(repetitions=3)
    subjects = {"good": "", "late": "", "early": "", "absent": "not installed"}
    rows = Rows(found, subjects, [CASE])
    for repetition in order:
        for subject, ended in ends[repetition].items():
            rows.take(subject, CASE, repetition, ended, 1.0)
    good, late, early, absent = found.rows
    assert (good.outcome, good.values, good.series) == (
        "measured",
        {"time": [1.0, 2.0, 3.0]},
        {"held": [3.0]},
    )
    assert (late.outcome, late.why, late.values) == ("out of memory", "full", {"time": [4.0]})
    assert (late.series, early.series) == ({"held": [4.0]}, {})
    assert (early.outcome, early.why, early.values) == ("failed", "broken", {})
    assert absent.outcome == "not here"
    assert (rows.done, rows.total, rows.left("good", 2)) == (9, 9, [])


def test_what_is_left_is_what_has_not_ended_whatever_its_number() -> None:
    rows = Rows(report(repetitions=3), {"pool": ""}, [CASE])
    for ended, repetition in enumerate((2, 0, 1), 1):
        rows.take("pool", CASE, repetition, measured(1.0), 1.0)
        assert (rows.done, rows.left("pool", 2)) == (ended, [] if ended == 3 else [CASE])


def test_a_drawing_of_one_repetition_is_kept_beside_the_figures_of_all() -> None:
    found = report(repetitions=3)
    rows = Rows(found, {"pool": ""}, [CASE])
    drawn = Ended(0, "measured", {"time": 1.0}, series={"held": [1.0]}, drawings=[Text("a map")])
    for repetition, ended in enumerate((drawn, measured(2.0), measured(3.0))):
        rows.take("pool", CASE, repetition, ended, 1.0)
    assert found.rows[0].drawings == [Text("a map")]
    assert found.rows[0].series == {"held": [3.0]}


def site(node: str, **fields: object) -> Site:
    given: dict[str, object] = {
        "node": node,
        "card": "a card",
        "uuid": f"of {node}",
        "card_bytes": 12 << 30,
        "simulated": "h200",
        "machine": MACHINE,
        "versions": {"vramkit": "0.1.0"},
    }
    return Site(**given | fields)  # type: ignore[arg-type]


def test_a_card_is_noted_once_with_all_its_repetitions() -> None:
    sites: list[Site] = []
    for node, repetition in (("b", 2), ("a", 1), ("b", 0), ("b", 3)):
        note_site(sites, site(node), repetition)
    assert [(each.node, each.repetitions) for each in sites] == [("a", [1]), ("b", [0, 2, 3])]


def said(found: Report) -> list[Callout]:
    drawn = document(find("fake_lab:FAKE"), found)
    sections = {section.title: section.blocks for section in drawn.sections}
    return [
        block for block in sections.get("Where it was measured", []) if isinstance(block, Callout)
    ]


def test_a_report_of_several_cards_does_not_pass_for_one_of_one_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(PROGRAMS)
    assert said(report()) == []
    alike = said(report(sites=[site("a"), site("b")]))
    assert alike[0].tone == "note"
    assert alike[0].title == "Repetitions were measured on 2 cards."
    for fields in (
        {"card_bytes": 1 << 30},
        {"card": "another"},
        {"machine": msgspec.structs.replace(MACHINE, cores=64)},
        {"versions": {"vramkit": "0.1.0", "torch": "3"}},
    ):
        (warned,) = said(report(sites=[site("a"), site("b", **fields)]))
        assert warned.tone == "warning" and "They are not alike" in str(warned)


def test_a_comparison_names_where_both_were_measured() -> None:
    rows = [row("pool", time=[1.0, 1.0])]
    spread = report(rows=rows, sites=[site("a", repetitions=[0]), site("b", repetitions=[1, 2])])
    differs = compare_reports(report(rows=rows), spread).differs
    assert differs == [("measured on", "", "a (1 repetition), b (2 repetitions)")]
