"""Two results compared, from figures with known answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vramkit.lab.compare import NotComparable, compare_reports
from vramkit.lab.comparison_document import document
from vramkit.lab.result import Machine, Quantity, Row
from vramkit.report.blocks import Callout, Document, Table

from .runs import MACHINE, QUANTITIES, report, row

SLOW = [2.0, 2.1, 2.2, 2.3, 2.4]
FAST = [1.0, 1.1, 1.2, 1.3, 1.4]


def judgements(old: list[Row], new: list[Row]) -> dict[tuple[str, str], str]:
    found = compare_reports(report(rows=old), report(rows=new))
    return {(change.subject, change.quantity): change.judgement for change in found.changes}


def test_the_direction_of_a_quantity_decides_what_is_better() -> None:
    old = [row("pool", time=SLOW, rate=SLOW, room=SLOW)]
    new = [row("pool", time=FAST, rate=FAST, room=FAST)]
    expected = {("pool", "time"): "better", ("pool", "rate"): "worse", ("pool", "room"): "other"}
    assert judgements(old, new) == expected
    assert judgements(new, old) == {
        ("pool", "time"): "worse",
        ("pool", "rate"): "better",
        ("pool", "room"): "other",
    }


def test_what_is_within_the_spread_or_measured_too_seldom_is_no_change() -> None:
    assert judgements([row("a", time=SLOW)], [row("a", time=[2.1, 2.2, 2.3, 2.4, 2.5])]) == {
        ("a", "time"): "no difference"
    }
    assert judgements([row("a", time=SLOW)], [row("a", time=FAST[:3])]) == {
        ("a", "time"): "too few"
    }


def test_a_change_has_its_size_from_the_old_figure() -> None:
    (change,) = compare_reports(
        report(rows=[row("a", time=[2.0] * 5)]), report(rows=[row("a", time=[3.0] * 5)])
    ).changes
    assert (change.old.median, change.new.median) == (2.0, 3.0)
    assert change.difference.relative == pytest.approx(0.5)


def test_rows_are_told_apart_by_workload_arm_and_subject() -> None:
    names = [("w", ""), ("w", "locked"), ("v", "")]
    old = [row(s, w, arm=a, time=SLOW) for w, a in names for s in ("p", "q")]
    new = [row(s, w, arm=a, time=FAST) for s in ("q", "p") for w, a in reversed(names)]
    found = compare_reports(report(rows=old), report(rows=new))
    assert len(found.changes) == 6 and {each.judgement for each in found.changes} == {"better"}
    assert found.one_sided == []


def test_a_row_that_fails_now_is_worse_and_one_that_is_not_there_is_only_told() -> None:
    old = [row("dies", time=FAST), row("left_out", time=FAST), row("absent", time=FAST)]
    gone = Row("work", "absent", outcome="not here", why="no such package")
    old.append(row("heals", why="ended by SIGKILL"))
    new = [row("dies", why="ended by SIGKILL"), gone, row("fresh", time=FAST)]
    new.append(row("heals", time=FAST))
    found = compare_reports(report(rows=old), report(rows=new))
    told = {
        each.subject: (each.side, each.outcome, each.why, each.worse) for each in found.one_sided
    }
    assert told == {
        "dies": ("old", "failed", "ended by SIGKILL", True),
        "absent": ("old", "not here", "no such package", False),
        "fresh": ("new", "not in it", "", False),
        "heals": ("new", "failed", "ended by SIGKILL", False),
        "left_out": ("old", "not in it", "", False),
    }
    assert found.worse == 1


def test_a_row_that_fails_in_a_later_repetition_is_worse_too() -> None:
    ended_early = row("pool", time=FAST[:2])
    ended_early.outcome, ended_early.why = "out of memory", "9 GiB are not free"
    whole, failing = report(rows=[row("pool", time=FAST)]), report(rows=[ended_early])
    found = compare_reports(whole, failing)
    (told,) = found.one_sided
    assert (told.side, told.outcome, told.why) == ("old", "out of memory", "9 GiB are not free")
    assert found.worse == 1 and len(found.changes) == 1
    back = compare_reports(failing, whole)
    assert [(each.side, each.outcome) for each in back.one_sided] == [("new", "out of memory")]
    assert back.worse == 0
    assert compare_reports(failing, failing).one_sided == []


def test_rows_without_figures_on_both_sides_are_passed_over() -> None:
    rows = [row("dies", why="it did"), Row("work", "absent", outcome="not here")]
    found = compare_reports(report(rows=rows), report(rows=rows))
    assert (found.changes, found.one_sided, found.worse) == ([], [], 0)


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ({}, {}, []),
        ({"card": "A"}, {"card": "B"}, [("card", "A", "B")]),
        ({"seed": 1}, {"seed": 2}, [("seed", "1", "2")]),
        ({"simulated": "h200"}, {"simulated": "pcie4"}, [("profile", "h200", "pcie4")]),
        (
            {"settings": {"rows": 1, "gone": "x"}},
            {"settings": {"rows": 2, "new": True}},
            [
                ("setting rows", "1", "2"),
                ("setting gone", "x", ""),
                ("setting new", "", "True"),
            ],
        ),
        (
            {"versions": {"vramkit": "1", "torch": "2"}},
            {"versions": {"vramkit": "1", "torch": "3"}},
            [("version of torch", "2", "3")],
        ),
        ({}, {"stopped": "interrupted"}, [("stopped early", "", "interrupted")]),
        # No part of it was measured on NVIDIA's driver.
        ({}, {"machine": msgspec.structs.replace(MACHINE, nvidia_driver="580", gpu="x")}, []),
        (
            {},
            {"machine": msgspec.structs.replace(MACHINE, cores=64)},
            [("cores", "2", "64")],
        ),
    ],
)
def test_what_else_differs_is_said(
    old: dict[str, Any], new: dict[str, Any], differs: list[tuple[str, str, str]]
) -> None:
    assert compare_reports(report(**old), report(**new)).differs == differs


def test_the_driver_of_a_real_card_counts() -> None:
    old, new = (
        report(simulated=None, machine=Machine("c", 2, "k", "H200", driver, "3"))
        for driver in ("570", "580")
    )
    assert compare_reports(old, new).differs == [("nvidia driver", "570", "580")]


def test_results_that_say_nothing_about_one_another_are_refused() -> None:
    with pytest.raises(NotComparable, match="two experiments, a and b"):
        compare_reports(report(experiment="a"), report(experiment="b"))
    with pytest.raises(NotComparable, match="first result is from a real card, the second from a "):
        compare_reports(report(simulated=None), report())
    with pytest.raises(NotComparable, match="first result is from a simulated card"):
        compare_reports(report(), report(simulated=None))


def test_a_quantity_that_means_something_else_is_not_compared() -> None:
    changed = QUANTITIES | {"time": Quantity("time", "us")}
    old = report(rows=[row("a", time=SLOW, room=SLOW)])
    new = report(rows=[row("a", time=FAST, room=FAST)], quantities=changed)
    found = compare_reports(old, new)
    assert [each.quantity for each in found.changes] == ["room"]
    assert found.differs == [("quantity time", "time, ms, lower", "time, us, lower")]


def tables(drawn: Document) -> list[list[str]]:
    blocks = [block for section in drawn.sections for block in section.blocks]
    return [line for block in blocks if isinstance(block, Table) for line in block.rows]


def test_the_page_shows_changes_with_the_worst_first() -> None:
    old = [row(name, time=FAST) for name in ("little", "much", "same", "faster")]
    times = {
        "little": [value + 0.5 for value in FAST],
        "much": [value + 5 for value in FAST],
        "same": FAST,
        "faster": [value / 9 for value in FAST],
    }
    new = [row(name, time=values) for name, values in times.items()]
    found = compare_reports(report(rows=old), report(rows=new))
    drawn = document(found, "a.json", "b.json", everything=False)
    assert [(line[1], line[-1]) for line in tables(drawn)] == [
        ("much", "worse"),
        ("little", "worse"),
        ("faster", "better"),
    ]
    assert tables(drawn)[0][3:6] == ["1.20 ms", "6.20 ms", "+416.7 % (+344.1 to +511.5)"]
    (callout,) = [
        block
        for section in drawn.sections
        for block in section.blocks
        if isinstance(block, Callout)
    ]
    assert (callout.tone, callout.title) == (
        "bad",
        "4 figures: 2 worse, 1 better, 1 within the spread.",
    )
    everything = document(found, "a.json", "b.json", everything=True)
    assert len(tables(everything)) == 4


def test_what_differs_besides_the_figures_comes_first() -> None:
    found = compare_reports(report(card="A"), report(card="B", rows=[row("a", time=FAST)]))
    drawn = document(found, "a.json", "b.json", everything=False)
    assert drawn.sections[0].title == "What else differs"
    assert tables(drawn)[0] == ["card", "A", "B"]
    assert drawn.simulated == "both results"
