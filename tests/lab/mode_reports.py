"""Reports of the experiments on modes and policies: made up, and measured in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from vramkit.driver import Device, Driver
from vramkit.lab.collect import new_report
from vramkit.lab.experiment import Case, Experiment, Lab
from vramkit.lab.result import Report, Row
from vramkit.lab.run import Run
from vramkit.lab.settings import resolve

Figures = Mapping[tuple[Case, str, str], float]
"""By case, subject and quantity."""


def lab_on(driver: Driver, experiment: Experiment, *given: str) -> Lab:
    settings = resolve(experiment.settings, given)
    return Lab(driver, driver.device(), seed=1, repetition=0, settings=settings)


def lab_as_on_a_card(device: Device, experiment: Experiment, *given: str) -> Lab:
    """The code for a real card, on the simulated one."""
    driver = cast(Any, SimpleNamespace(sim=None, simulated=False))
    return Lab(driver, device, 1, 0, resolve(experiment.settings, given))


def made_up(experiment: Experiment, driver: Driver, figures: Figures) -> Report:
    report = new_report(experiment, experiment.name, driver, 0, settings={}, seed=1, repetitions=1)
    for (case, subject, quantity), value in figures.items():
        row = report.row(case.workload, subject, case.arm)
        if row is None:
            row = Row(case.workload, subject, case.arm, outcome="measured")
            report.rows.append(row)
        row.values[quantity] = [value]
    return report


def run_loop(
    experiment: Experiment, driver: Driver, subjects: Iterable[str], cases: list[Case], *given: str
) -> Report:
    """In processes, as the command does."""
    settings = resolve(experiment.settings, given)
    report = new_report(
        experiment, experiment.name, driver, 0, settings=settings, seed=1, repetitions=1
    )
    missing = experiment.subjects(driver)
    chosen = {subject: missing[subject] for subject in subjects}
    return Run(experiment, experiment.name, report, "sim", 0, chosen, cases).run()
