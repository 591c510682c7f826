"""The checker reports each wrong program with both sites, and says nothing of its correct twin."""

from __future__ import annotations

import pytest

from vramkit.driver import Driver

from .checker_bench import Bench, Program
from .checker_programs import PROGRAMS

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(stacks="python")]

each_program = pytest.mark.parametrize(
    "program", PROGRAMS, ids=[program.name for program in PROGRAMS]
)


@each_program
@pytest.mark.expects_reports
def test_wrong_program_is_reported_once_with_both_sites(driver: Driver, program: Program) -> None:
    assert driver.sim is not None
    with Bench(driver) as bench:
        outcome = program.body(bench, False)
    (report,) = driver.sim.reports()
    program.check(report, outcome)


@each_program
def test_correct_twin_is_not_reported(driver: Driver, program: Program) -> None:
    assert driver.sim is not None
    with Bench(driver) as bench:
        program.body(bench, True)
    assert driver.sim.reports() == []


@pytest.mark.expects_reports
def test_accesses_of_two_threads_name_both_threads(driver: Driver) -> None:
    assert driver.sim is not None
    (program,) = (each for each in PROGRAMS if each.name.startswith("per_thread_default"))
    with Bench(driver) as bench:
        program.body(bench, False)
    (report,) = driver.sim.reports()
    assert report.first.thread != report.second.thread
