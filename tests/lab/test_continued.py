"""A run that goes on where one ended early: the same result, and only of the same things."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from vramkit.lab.catalog import find
from vramkit.lab.continued import NotTheSame, continued
from vramkit.lab.document import document
from vramkit.lab.experiment import Case
from vramkit.lab.result import Report, Site, load, save
from vramkit.lab.run import Run
from vramkit.lab.settings import resolve

from .runs import MACHINE, NAME, PROGRAMS, fake_run, report, row

CASE = Case("work")


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))
    monkeypatch.syspath_prepend(PROGRAMS)
    monkeypatch.delenv("VRAMKIT_SIM", raising=False)


def stopped_after(run: Run, values: int) -> Report:
    """As Ctrl-C would, when so many repetitions have ended. Those that a subject has answered by
    then count too."""
    ended = 0

    def count(report: Report) -> None:
        nonlocal ended
        ended += 1
        if ended == values:
            run.signals.append(signal.SIGINT)

    run.changed = count
    found = run.run()
    assert found.stopped == "interrupted" and ended > values
    return found


def goes_on(run: Run, before: Report) -> Run:
    """With what an earlier one has left."""
    subjects = run.experiment.subjects(None)  # type: ignore[arg-type]
    known = run.experiment.cases(run.report.settings)
    keys = [(subject, case) for subject in run.subjects for case in run.cases]
    run.report = continued(before, run.report, subjects, known, keys)
    run.continued = "2026-02-02"
    return run


def kept(found: Report, path: Path) -> Report:
    save(found, path)
    return load(path)


def test_the_rows_are_those_of_one_run_wherever_others_ended(tmp_path: Path) -> None:
    def run() -> Run:
        subjects = ["raises", "draws", "changes", "absent"]
        return fake_run(subjects, ["first", "middle"], repetitions=2, seed=4)

    whole = run().run()
    assert [each.repetitions for each in whole.rows] == [2, 1, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0]
    for values in ((1,), (4, 3, 7), (10,)):
        found = stopped_after(run(), values[0])
        for more in values[1:]:
            found = stopped_after(goes_on(run(), kept(found, tmp_path / "a.json")), more)
        dates = len(values[1:]) + 1
        found = goes_on(run(), kept(found, tmp_path / "a.json")).run()
        assert found.continued == ["2026-02-02"] * dates
        assert structs.replace(found, continued=[]) == whole


@pytest.mark.sim_only
def test_an_experiment_on_the_virtual_clock_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    experiment = find("fragmentation")
    settings = resolve(experiment.settings, ["scale=0.05", "blocks=100", "rounds=10"])
    cases = [case for case in experiment.cases(settings) if case.name != "small_blocks"][-4:]
    # The pool's background thread is at the mercy of the machine's scheduler.
    subjects = dict.fromkeys(("direct", "async", "arena"), "")

    def run() -> Run:
        fresh = report(
            experiment="fragmentation",
            settings=settings,
            repetitions=2,
            quantities=dict(experiment.quantities),
        )
        return Run(experiment, "fragmentation", fresh, "sim", 0, dict(subjects), cases)

    whole = run().run()
    assert all(each.repetitions == 2 for each in whole.rows)
    before = kept(stopped_after(run(), 9), tmp_path / "a.json")
    second = run()
    keys = [(subject, case) for subject in subjects for case in cases]
    second.report = continued(before, second.report, subjects, cases, keys)
    again = structs.replace(second.run(), continued=[])
    assert msgspec.json.encode(again) == msgspec.json.encode(whole)


def test_what_is_whole_is_not_measured_again(tmp_path: Path) -> None:
    note = tmp_path / "note"

    def run() -> Run:
        return fake_run(["good", "raises"], ["middle"], repetitions=2, given=(f"note={note}",))

    whole = kept(run().run(), tmp_path / "a.json")
    note.unlink()
    again = goes_on(run(), whole).run()
    assert not note.exists()
    assert again == whole and again.continued == []


def test_rows_are_added_in_their_order_and_a_part_is_not_the_whole(tmp_path: Path) -> None:
    def run(*workloads: str, repetitions: int = 2) -> Run:
        return fake_run(["good"], list(workloads), repetitions=repetitions, seed=1)

    whole = run("first", "last").run()
    found = kept(run("last", repetitions=1).run(), tmp_path / "a.json")
    found = goes_on(run("first"), found).run()
    assert found.stopped == "not all of its rows were continued"
    found = goes_on(run("last"), found).run()
    assert found.stopped == "" and found.rows == whole.rows
    assert len(found.continued) == 2


def both(before: Report, now: Report, subjects: Mapping[str, str] | None = None) -> Report:
    known = {"pool": "", "torch": ""} if subjects is None else subjects
    return continued(before, now, known, [CASE], [("pool", CASE)])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"seed": 7}, "seed was 0 and is 7"),
        ({"settings": {"scale": 2.0}}, "setting scale was none and is 2.0"),
        ({"card": "another"}, "card was a card and is another"),
        ({"card_bytes": 1 << 30}, "bytes of the card was 12884901888 and is 1073741824"),
        ({"simulated": None}, "profile was h200 and is none"),
        ({"machine": structs.replace(MACHINE, cpu="new")}, "cpu was a processor and is new"),
        (
            {"versions": {"vramkit": "0.1.0", "torch": "3"}},
            "version of torch was none and is 3",
        ),
        ({"command": "VRAMKIT_SIM=data=off vramkit lab x"}, "VRAMKIT_SIM was none and is data=off"),
        ({"command": "vramkit lab x --device 1"}, "--device was none and is 1"),
        ({"repetitions": 3}, "it has 5 repetitions, and 3 are wanted"),
    ],
)
def test_a_run_of_something_else_is_refused_with_what_differs(
    fields: dict[str, object], words: str
) -> None:
    before = report(stopped="interrupted", rows=[structs.replace(row("pool"), repetitions=1)])
    assert both(before, report()).rows == before.rows
    with pytest.raises(NotTheSame, match=words):
        both(before, report(**fields))


def test_what_cannot_be_continued_is_refused() -> None:
    begun = structs.replace(row("pool", time=[1.0]), repetitions=1)
    site = Site("a", "a card", "", 12 << 30, "h200", MACHINE, {})
    for before, subjects, words in (
        (report(sites=[site]), None, "cards of a cluster"),
        (report(rows=[row("pool", time=[1.0])]), None, "does not say how many repetitions"),
        (report(rows=[begun]), {"pool": "not installed"}, "pool took part in it, and cannot"),
        (report(rows=[begun]), {"torch": ""}, "1 row that the experiment does not have"),
    ):
        with pytest.raises(NotTheSame, match=words):
            both(before, report(), subjects)


def test_the_command_is_that_of_the_first_run_unless_more_is_measured() -> None:
    before = report(command="old", rows=[structs.replace(row("pool"), repetitions=1)])
    now = report(command="new")
    assert both(before, now).command == "old"
    assert both(before, report(command="new", repetitions=9)).command == "new"
    assert both(report(command="old"), now).command == "new"


def test_a_report_says_in_how_many_runs_it_was_measured() -> None:
    one, two = (
        str(document(find(NAME), report(continued=dates))) for dates in ([], ["2026-03-03"])
    )
    assert "in 2 runs" in two and "had ended: 2026-01-01T00:00:00Z, 2026-03-03." in two
    assert "runs, each" not in one and "2 runs" not in one
