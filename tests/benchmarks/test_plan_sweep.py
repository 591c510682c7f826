"""The figures of docs/plan.md on a sweep of 10,000 plans are those of the published results."""

from __future__ import annotations

import plan_sweep
import programs
import pytest


def test_page_shows_the_published_results() -> None:
    page = plan_sweep.PAGE.read_text("utf-8")
    made = programs.between_marks(page, "plan_sweep", plan_sweep.page(plan_sweep.read()))
    assert made == page, "python benchmarks/plan_sweep.py publish"


def test_results_are_those_of_the_sweep_that_the_page_names() -> None:
    local, ray = plan_sweep.read().values()
    assert (local.place, ray.place) == ("local", "ray")
    overview = (programs.ROOT / "benchmarks" / "README.md").read_text("utf-8")
    for report in (local, ray):
        assert report.simulated and report.identical and report.plans == 10_000
        found = plan_sweep.medians(report.sweeps)
        assert report.speedup == pytest.approx(found[1] / found[2])
        assert f"sim.json`: {report.speedup:.2f}" in overview


def test_goal_that_was_missed_and_a_machine_that_was_busy_are_said() -> None:
    local, _ = plan_sweep.read().values()
    local.speedup, local.idle = 1.95, True
    assert plan_sweep.speedup_words(local) == "1.95 times as fast (goal 1.9: met)"
    local.speedup, local.idle = 1.5, False
    assert "1.50 times as fast (goal 1.9: missed); the load was" in plan_sweep.speedup_words(local)


def test_page_without_marks_is_not_written() -> None:
    with pytest.raises(SystemExit, match="has no <!-- plan_sweep -->"):
        programs.between_marks("no marks", "plan_sweep", "table")
