"""Runs of the experiment of programs/fake_lab.py, and reports made by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from vramkit.lab.catalog import find
from vramkit.lab.experiment import Case
from vramkit.lab.result import Machine, Quantity, Report, Row
from vramkit.lab.run import Run
from vramkit.lab.settings import resolve

PROGRAMS = Path(__file__).with_name("programs")
NAME = "fake_lab:FAKE"
MACHINE = Machine("a processor", 2, "Linux 6", "", "", "3.11.1")
QUANTITIES = {
    "time": Quantity("time", "ms"),
    "rate": Quantity("rate", "bytes/s", "higher"),
    "room": Quantity("memory", "bytes", "neither"),
}


def report(**fields: object) -> Report:
    given: dict[str, object] = {
        "experiment": NAME,
        "date": "2026-01-01T00:00:00Z",
        "machine": MACHINE,
        "versions": {"vramkit": "0.1.0"},
        "card": "a card",
        "card_bytes": 12 << 30,
        "simulated": "h200",
        "settings": {},
        "seed": 0,
        "quantities": dict(QUANTITIES),
        "repetitions": 5,
    }
    return Report(**given | fields)  # type: ignore[arg-type]


def row(
    subject: str, workload: str = "work", *, arm: str = "", why: str = "", **values: list[float]
) -> Row:
    return Row(workload, subject, arm, dict(values), "failed" if why else "measured", why)


def fake_run(
    subjects: list[str],
    cases: list[str] | None = None,
    *,
    repetitions: int = 1,
    seed: int = 0,
    given: tuple[str, ...] = (),
    clock: Callable[[], float] = time.monotonic,
    seconds: float | None = None,
) -> Run:
    experiment = find(NAME)
    settings = resolve(experiment.settings, given)
    known = experiment.subjects(None)  # type: ignore[arg-type]
    chosen = [
        each for each in experiment.cases(settings) if cases is None or each.workload in cases
    ]
    return Run(
        experiment,
        NAME,
        report(
            repetitions=repetitions,
            seed=seed,
            settings=settings,
            quantities=dict(experiment.quantities),
        ),
        "sim",
        0,
        {subject: known[subject] for subject in subjects},
        chosen,
        clock=clock,
        seconds=seconds,
    )


def row_of(found: Report, subject: str, case: Case | str) -> Row:
    case = Case(case) if isinstance(case, str) else case
    row = found.row(case.workload, subject, case.arm)
    assert row is not None
    return row


def is_running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def ends(pid: int, seconds: float = 20) -> bool:
    """Waits until the process is gone; a zombie is."""
    limit = time.monotonic() + seconds
    while is_running(pid):
        if time.monotonic() > limit:
            return False
        time.sleep(0.01)
    return True
