"""Every experiment draws and judges what is there: runs that ended early, rows that failed."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence

import pytest
from rich.console import Console
from soak import rounds

from vramkit.lab.catalog import EXPERIMENTS
from vramkit.lab.document import document
from vramkit.lab.experiment import Case, Experiment
from vramkit.lab.replay import REPLAY
from vramkit.lab.replay.settings import SMALLEST, WITH_LIMIT
from vramkit.lab.result import Report, Row
from vramkit.lab.settings import resolve
from vramkit.lab.subjects import SUBJECTS
from vramkit.lab.weights.study import SUBJECTS as OF_WEIGHTS
from vramkit.lab.weights.sweep import WAITS
from vramkit.report.html import page
from vramkit.report.terminal import print_document

from .runs import report

VALUES = (0.0, 1e-9, 0.5, 1.0, 1.001, 2.0, 3.0, 40.0, 16_000.0, 1e12)
SUBJECTS_OF: dict[str, Sequence[str]] = {
    "allocators": list(SUBJECTS),
    "fragmentation": list(SUBJECTS),
    "replay": list(SUBJECTS),
    "sharing": ("swap", "swap_out_in", "prefetch", "prefetch_out_in", "paged"),
    "weights": (*OF_WEIGHTS, "resident", "accelerate", "diffusers"),
    "weights-sweep": list(WAITS),
}


def cases_of(experiment: Experiment) -> list[Case]:
    if experiment.name == "replay":
        names = ("train", "serve")
        arms = ("", "card of 1 GiB", "card of 2 GiB", WITH_LIMIT, SMALLEST)
        return [Case(name, arm) for name in names for arm in arms]
    return experiment.cases(resolve(experiment.settings, []))


def incomplete(experiment: Experiment, number: int) -> Report:
    """Some subjects, some cases, and of them some figures; all values are possible ones. Plain
    chance: to shrink a report of a thousand figures takes minutes, and its number is enough."""
    chance = random.Random(f"{experiment.name} {number}")
    known = SUBJECTS_OF[experiment.name]
    subjects = chance.sample(known, chance.randint(1, len(known)))
    cases = cases_of(experiment)
    if chance.random() < 0.5:
        cases = chance.sample(cases, chance.randint(1, len(cases)))
    kept = chance.choice([0.2, 0.6, 1.0])
    repetitions = chance.choice([1, 2, 5])
    values = chance.choices(VALUES, k=chance.randint(1, 6))
    rows = []
    for subject in subjects:
        for case in cases:
            row = Row(case.workload, subject, case.arm, outcome="not run")
            if chance.random() < kept:
                row.outcome = "measured"
                row.values = {
                    name: chance.choices(values, k=chance.randint(1, repetitions))
                    for name in experiment.quantities
                    if chance.random() < kept
                }
            elif chance.random() < kept:
                row.outcome, row.why = chance.choice(["out of memory", "failed"]), "of a test"
            rows.append(row)
    return report(
        experiment=experiment.name,
        rows=rows,
        repetitions=repetitions,
        quantities=dict(experiment.quantities),
        settings=resolve(experiment.settings, []),
        simulated=chance.choice(["h200", None]),
        stopped=chance.choice(["", "interrupted"]),
    )


@pytest.mark.parametrize("experiment", [*EXPERIMENTS.values(), REPLAY], ids=lambda each: each.name)
def test_any_part_of_a_report_is_judged_and_drawn(experiment: Experiment) -> None:
    for number in range(rounds(25, 200)):
        found = incomplete(experiment, number)
        try:
            made = document(experiment, found)
            print_document(Console(file=io.StringIO(), width=100), made)
            assert "</html>" in page(made)
        except Exception as error:
            error.add_note(f"report {number} of {experiment.name}")
            raise
