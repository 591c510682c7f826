"""Whether the pool is first in a row, from figures with known answers."""

from __future__ import annotations

import pytest

from tests.lab.allocator_reports import FEW, around, lacking, made
from vramkit.lab.allocators import ALLOCATORS
from vramkit.lab.allocators.goals import places as of_allocators
from vramkit.lab.allocators.memory_limited import NAME as MEMORY_LIMITED
from vramkit.lab.experiment import Experiment
from vramkit.lab.fragmentation import FRAGMENTATION
from vramkit.lab.fragmentation.goals import places as of_fragmentation
from vramkit.lab.goals import HELD, Mark, Place, counted, place
from vramkit.lab.result import Report

NATIVE = "native"


def row(quantity: str, count: int = 5, spread: float = 0.001, **values: float) -> Report:
    rows = {
        ("churn", NATIVE, name): {quantity: around(value, spread, count)}
        for name, value in values.items()
    }
    return made(ALLOCATORS, rows)


def judged(report: Report, quantity: str = "time") -> tuple[Mark, str]:
    found = place(report, "churn", NATIVE, quantity)
    assert found is not None
    return found.mark, found.figures


@pytest.mark.parametrize(
    ("pool", "other", "spread", "mark", "figures"),
    [
        (100.0, 120.0, 0.001, "met", "first; `rmm_pool` is above it by 20.0 % (19.8 % to 20.2 %)"),
        (120.0, 100.0, 0.001, "missed", "`rmm_pool` first; behind by 20.0 % (19.8 % to 20.2 %)"),
        (100.9, 100.0, 0.0, "met", "level with `rmm_pool`"),  # no difference
        (120.0, 100.0, 0.2, "met", "level with `rmm_pool`"),  # within the spread
        (100.0, 120.0, 0.2, "met", "level with `rmm_pool`"),
    ],
)
def test_first_or_within_the_spread_of_the_first_is_enough(
    pool: float, other: float, spread: float, mark: Mark, figures: str
) -> None:
    assert judged(row("time", spread=spread, pool=pool, rmm_pool=other)) == (mark, figures)


def test_too_few_repetitions_meet_nothing() -> None:
    report = row("time", count=FEW, pool=100.0, rmm_pool=150.0)
    assert judged(report) == ("cannot be said", "too few repetitions")


def test_who_keeps_nothing_is_first_in_held_memory_alone_of_its_kind() -> None:
    found = judged(row(HELD, direct=1.0, pool=1.1, rmm_async=1.3), HELD)
    assert found[0] == "met among those that keep memory"
    assert found[1].startswith("first; `rmm_async` is above it by 18.2 %")
    assert "above `direct` by 10.0 %" in found[1]
    mark, figures = judged(row(HELD, direct=1.0, pool=1.3, rmm_async=1.1), HELD)
    assert mark == "missed" and figures.startswith("`rmm_async` first; behind by 18.2 %")
    assert judged(row(HELD, direct=1.0, pool=1.3), HELD)[0] == "met among those that keep memory"
    assert judged(row(HELD, direct=1.0, pool=1.0, rmm_async=1.3), HELD)[0] == "met"
    # In time it is one like the others.
    assert judged(row("time", direct=1.0, pool=1.1, rmm_async=1.3))[0] == "missed"


def test_who_fails_where_others_do_not_is_behind_and_who_is_served_alone_is_first() -> None:
    report = row("time", rmm_pool=100.0)
    report.rows.append(lacking("churn", NATIVE, "pool", "out of memory"))
    assert judged(report) == ("missed", "out of memory; others are served")
    report = row("time", pool=100.0)
    report.rows.append(lacking("churn", NATIVE, "rmm_pool", "not here"))
    assert place(report, "churn", NATIVE, "time") is None  # nobody to be compared with
    report.rows.append(lacking("churn", NATIVE, "rmm_async", "out of memory"))
    assert judged(report) == ("met", "alone served")
    # A crash says nothing of who is better.
    report.rows.append(lacking("churn", NATIVE, "rmm_arena", "failed"))
    assert place(report, "churn", NATIVE, "time") is None


@pytest.mark.parametrize("report", [row("time", rmm_pool=1.0), row("time", pool=1.0)])
def test_a_row_without_the_pool_or_without_others_has_no_place(report: Report) -> None:
    assert place(report, "churn", NATIVE, "time") is None


def test_times_are_not_ranked_where_they_are_simulated() -> None:
    values = {"time": around(1.0), HELD: around(1.1)}
    for experiment, key, times in (
        (ALLOCATORS, ("churn", NATIVE), ["time"]),
        (FRAGMENTATION, ("alone", "cold"), ["phase_1", "phase_3", "phase_5"]),
    ):
        values |= {name: around(1.0) for name in times}
        rows = {(*key, name): values for name in ("pool", "async")}
        known = {name: each for name, each in values.items() if name in experiment.quantities}
        rows = dict.fromkeys(rows, known)
        on_card = [each.quantity for each in found_in(experiment, made(experiment, rows))]
        assert on_card == [*times, HELD]
        simulated = found_in(experiment, made(experiment, rows, simulated="h200"))
        assert [each.quantity for each in simulated] == [HELD]


def found_in(experiment: Experiment, report: Report) -> list[Place]:
    return of_allocators(report) if experiment is ALLOCATORS else of_fragmentation(report)


def test_of_the_small_card_each_size_is_set_beside_the_pool_that_takes_none() -> None:
    rows = {
        (MEMORY_LIMITED, "default", "pool"): {"time": around(100.0)},
        (MEMORY_LIMITED, "right", "fixed_pool"): {"time": around(90.0)},
        (MEMORY_LIMITED, "right", "rmm_pool"): {"time": around(50.0)},  # from Python
    }
    report = made(ALLOCATORS, rows)
    report.rows.append(lacking(MEMORY_LIMITED, "right", "pool", "not here"))
    report.rows.append(lacking(MEMORY_LIMITED, "too small", "fixed_pool", "out of memory"))
    found = {each.arm: (each.mark, each.figures) for each in of_allocators(report)}
    assert found.keys() == {"right", "too small"}
    assert found["right"][0] == "missed" and found["right"][1].startswith("`fixed_pool` first")
    assert found["too small"] == ("met", "alone served")


def test_of_the_small_card_nothing_is_said_where_the_run_was_stopped_before_the_pool() -> None:
    report = made(ALLOCATORS, {(MEMORY_LIMITED, "right", "fixed_pool"): {"time": around(90.0)}})
    report.rows.append(lacking(MEMORY_LIMITED, "default", "pool", "not run"))
    assert of_allocators(report) == []


def test_calls_from_python_are_not_set_beside_calls_from_cpp() -> None:
    times = {"pool": 100.0, "fixed_pool": 150.0, "rmm_pool": 50.0}
    rows = {("size_range", "", name): {"late": around(time)} for name, time in times.items()}
    (found,) = of_fragmentation(made(FRAGMENTATION, rows))
    assert found.mark == "met" and "rmm_pool" not in found.figures


def test_marks_are_counted_for_time_and_for_held_memory() -> None:
    marks: list[tuple[str, Mark]] = [
        ("time", "met"),
        ("time", "missed"),
        ("first", "met"),
        (HELD, "met among those that keep memory"),
    ]
    places = [Place("churn", NATIVE, quantity, mark, "") for quantity, mark in marks]
    assert counted(places) == (
        "time, of 3 rows: 2 met, 1 missed; held memory, of 1 row: 1 met among those that keep "
        "memory"
    )


@pytest.mark.parametrize("experiment", [ALLOCATORS, FRAGMENTATION])
def test_the_report_has_the_goal_with_its_rule_where_there_is_a_row(experiment: Experiment) -> None:
    key = ("churn", NATIVE) if experiment is ALLOCATORS else ("long_run", "")
    rows = {
        (*key, name): {HELD: around(value)} for name, value in {"pool": 1.0, "async": 2.0}.items()
    }
    drawn = repr(experiment.blocks(made(experiment, rows)))
    assert "The goal: pool first" in drawn and "held memory, of 1 row: 1 met" in drawn
    assert "keep memory" in drawn
    assert "The goal" not in repr(experiment.blocks(made(experiment, {})))
