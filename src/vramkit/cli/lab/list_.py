"""`vramkit lab list`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vramkit.cli.errors import UsageError

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.lab.experiment import Case, Experiment
    from vramkit.report.blocks import Block

SHOWN = 8
"""Arms of a workload that are shown; --json has all of them."""


class ListedSetting(msgspec.Struct):
    name: str
    default: int | float | bool | str
    allowed: str
    help: str


class Listed(msgspec.Struct):
    """An experiment in the list; `subjects` by name, with why they cannot take part here."""

    name: str
    title: str
    question: str
    subjects: dict[str, str]
    cases: list[str]
    settings: list[ListedSetting]


def list_(
    experiment: str | None = None, /, *, driver: str | None = None, json: bool = False
) -> int:
    """List the experiments, who takes part in them here, their cases and their settings.

    Parameters
    ----------
    experiment
        Only this one.
    driver
        cuda, sim or sim:PROFILE. Default: VRAMKIT_DRIVER, else the NVIDIA card, else sim.
    json
        The list as one JSON document.
    """
    from vramkit.cli.console import output, print_json
    from vramkit.cli.opening import open_driver_or_simulate
    from vramkit.lab.catalog import EXPERIMENTS, find
    from vramkit.lab.settings import resolve
    from vramkit.report.terminal import print_block

    try:
        chosen = EXPERIMENTS if experiment is None else {experiment: find(experiment)}
    except ValueError as error:
        raise UsageError(str(error)) from error
    opened, why = open_driver_or_simulate(driver)
    cases = {name: each.cases(resolve(each.settings, [])) for name, each in chosen.items()}
    found = [_listed(name, each, opened, cases[name]) for name, each in chosen.items()]
    if json:
        print_json(
            {
                "simulated": opened.simulated,
                "driver": opened.description,
                "experiments": found,
            }
        )
        return 0
    console = output()
    console.print(opened.description + (f": {why}" if why else ""), markup=False)
    for each in found:
        for block in _blocks(each, cases[each.name]):
            print_block(console, block)
    return 0


def _listed(name: str, experiment: Experiment, driver: Driver, cases: list[Case]) -> Listed:
    return Listed(
        name,
        experiment.title,
        experiment.question,
        experiment.subjects(driver),
        [case.name for case in cases],
        [
            ListedSetting(each.name, each.default, each.allowed, each.help)
            for each in experiment.settings
        ],
    )


def _blocks(listed: Listed, cases: list[Case]) -> list[Block]:
    from vramkit.report.blocks import Callout, Table

    subjects = [[name, why or "takes part"] for name, why in listed.subjects.items()]
    settings = [[each.name, str(each.default), each.allowed, each.help] for each in listed.settings]
    found: list[Block] = [
        Callout("note", f"vramkit lab {listed.name}: {listed.title}", listed.question),
        Table(["subject", "here"], subjects),
        Table(["workload", "arms, for --cases WORKLOAD/ARM"], _arms(cases)),
    ]
    if settings:
        found.append(Table(["setting", "default", "it may be", "what it does"], settings))
    return found


def _arms(cases: list[Case]) -> list[list[str]]:
    """By workload."""
    by_workload: dict[str, list[str]] = {}
    for case in cases:
        by_workload.setdefault(case.workload, []).append(case.arm)
    rows = []
    for workload, arms in by_workload.items():
        more = f"; and {len(arms) - SHOWN} more" if len(arms) > SHOWN else ""
        rows.append([workload, "; ".join(arms[:SHOWN]) + more])
    return rows
