"""The loop that measures, with subjects that misbehave, in real processes."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vramkit.driver import Driver
from vramkit.driver.opening import reset_simulator
from vramkit.lab.experiment import Case
from vramkit.lab.result import Outcome, Report
from vramkit.lab.rows import Rows
from vramkit.lab.turn import start
from vramkit.lab.worker import Answer, Ended, Order
from vramkit.report.blocks import Text
from vramkit.sweep import Step
from vramkit.sweep.child import Child

from .runs import PROGRAMS, ends, fake_run, row_of

MIDDLE = Case("middle", "plain")


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))
    monkeypatch.syspath_prepend(PROGRAMS)
    monkeypatch.delenv("VRAMKIT_SIM", raising=False)


@pytest.mark.parametrize(
    ("subject", "outcome", "why"),
    [
        ("raises", "failed", "RuntimeError: a subject's own error"),
        ("full", "out of memory", "OutOfMemoryError: cuMemAlloc"),
        ("aborts", "failed", "ended by SIGABRT"),
        ("killed", "failed", "ended by SIGKILL"),
        ("killed_by_another_signal", "failed", "ended by signal 40"),
        ("leaves", "failed", "exit status 7: no way on"),
        ("imports", "failed", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("exits", "failed", "exit status 1: it has had enough"),
        ("crashes", "failed", "ended by SIGSEGV"),
        ("chatters", "failed", "exit status 1: last words é"),
        ("cannot", "not here", "it has no such operation"),
        ("not_a_number", "failed", "ValueError: time is nan"),
        ("unknown_quantity", "failed", "ValueError: measured heat, which is no quantity"),
        ("forks", "failed", "exit status 3"),
        ("breaks_the_answers", "failed", "answered what cannot be read"),
        ("writes", "measured", ""),
    ],
)
def test_a_subject_that_misbehaves_costs_one_row(subject: str, outcome: Outcome, why: str) -> None:
    found = fake_run([subject], ["first", "middle"]).run()
    assert [(row.workload, row.arm) for row in found.rows] == [
        ("first", ""),
        ("middle", "plain"),
        ("middle", "locked"),
    ]
    struck = row_of(found, subject, MIDDLE)
    assert struck.outcome == outcome
    assert struck.why.startswith(why) and len(struck.why) < 400
    for other in (Case("first"), Case("middle", "locked")):
        row = row_of(found, subject, other)
        assert (row.outcome, row.why, len(row.values["time"])) == ("measured", "", 1)
    assert found.stopped == ""


def test_rows_are_all_subjects_under_all_cases_and_who_is_absent_is_not_started(
    tmp_path: Path,
) -> None:
    note = tmp_path / "note"
    found = fake_run(["good", "absent"], given=(f"note={note}",)).run()
    assert [(row.subject, row.workload, row.arm) for row in found.rows] == [
        (subject, *case)
        for subject in ("good", "absent")
        for case in (("first", ""), ("middle", "plain"), ("middle", "locked"), ("last", ""))
    ]
    absent = [row for row in found.rows if row.subject == "absent"]
    assert {(row.outcome, row.why) for row in absent} == {
        ("not here", "its package is not installed")
    }
    assert not any(row.values for row in absent)
    assert "absent" not in note.read_text()


@pytest.mark.parametrize("subject", ["leaves", "raises"])
def test_a_row_that_failed_is_not_measured_again(subject: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    found = fake_run([subject], repetitions=2, given=(f"note={note}",)).run()
    lines = [line.split() for line in note.read_text().splitlines()]
    assert [case for repetition, _, case, _ in lines if repetition == "0"] == [
        "first",
        "middle/plain",
        "middle/locked",
        "last",
    ]
    assert "middle/plain" not in [case for repetition, _, case, _ in lines if repetition == "1"]
    # A process that has failed measures nothing more, and each repetition has a new one.
    processes = [process for *_, process in lines]
    assert len(set(processes)) == 3
    assert processes[0] == processes[1] != processes[2] == processes[3] != processes[4]
    assert len(row_of(found, subject, "last").values["time"]) == 2


def test_a_row_keeps_the_series_and_drawings_of_the_last_repetition() -> None:
    found = row_of(fake_run(["draws"], ["middle"], repetitions=2).run(), "draws", MIDDLE)
    assert found.values == {"time": [1.0, 1.0]}
    assert found.series == {"held": [float(point) for point in range(100_000)]}
    assert found.drawings == [Text("turn 1")]


def order_of(note: Path) -> list[tuple[str, str]]:
    lines = (line.split() for line in note.read_text().splitlines())
    return [(repetition, subject) for repetition, subject, *_ in lines]


def test_subjects_take_turns_in_an_order_that_the_seed_decides(tmp_path: Path) -> None:
    subjects = ["good", "writes", "cannot"]
    orders = []
    for number in range(2):
        note = tmp_path / str(number)
        fake_run(subjects, ["last"], repetitions=2, seed=3, given=(f"note={note}",)).run()
        orders.append(order_of(note))
    assert orders[0] == orders[1]
    chance = random.Random(3)
    expected = []
    for repetition in range(2):
        turn = list(subjects)
        chance.shuffle(turn)
        expected += [(str(repetition), subject) for subject in turn]
    assert orders[0] == expected
    assert expected[:3] != [("0", subject) for _, subject in expected[3:]]


def test_what_is_random_in_a_case_comes_from_the_seed() -> None:
    values = [
        row_of(fake_run(["good"], ["first"], seed=seed).run(), "good", "first").values["time"]
        for seed in (1, 1, 2)
    ]
    assert values[0] == values[1] != values[2]


def jumping(wait: Path, by: float) -> Callable[[], float]:
    """A clock that jumps when a subject hangs."""
    return lambda: time.monotonic() + (by if wait.exists() else 0.0)


@pytest.mark.parametrize("subject", ["hangs", "ignores_the_end", "hangs_in_c"])
def test_a_subject_that_hangs_is_ended_with_what_it_started(
    subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if subject != "hangs":
        monkeypatch.setattr("vramkit.sweep.child.GRACE_SECONDS", 0.05)
    wait = tmp_path / "wait"
    run = fake_run([subject], ["middle"], given=(f"wait={wait}",), clock=jumping(wait, 121))
    pids: list[int] = []

    def remember(report: Report) -> None:
        if wait.exists():
            pids.extend(int(pid) for pid in wait.read_text().split())
            wait.unlink()

    run.changed = remember
    found = run.run()
    row = row_of(found, subject, MIDDLE)
    assert (row.outcome, row.why) == ("timed out", "no result after 120 s")
    assert row_of(found, subject, Case("middle", "locked")).outcome == "measured"
    assert len(pids) == 2 and all(ends(pid) for pid in pids)
    assert (tmp_path / "wait.over").exists() is (subject == "hangs")


def test_the_time_limit_of_the_run_keeps_what_was_measured(tmp_path: Path) -> None:
    wait = tmp_path / "wait"
    run = fake_run(
        ["hangs"], given=(f"wait={wait}",), clock=jumping(wait, 1000), seconds=900, repetitions=2
    )
    run.case_seconds = 1e6
    found = run.run()
    assert found.stopped == "the time limit of 900 s was reached"
    assert row_of(found, "hangs", "first").outcome == "measured"
    assert row_of(found, "hangs", MIDDLE).outcome == "not run"
    assert row_of(found, "hangs", "last").outcome == "not run"
    assert all(ends(int(pid)) for pid in wait.read_text().split())


def test_a_second_ctrl_c_does_not_wait_for_a_subject_that_ignores_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vramkit.sweep.child.GRACE_SECONDS", 1e6)
    wait = tmp_path / "wait"

    def clock() -> float:
        if wait.exists() and not run.signals:
            run.signals.extend([signal.SIGINT, signal.SIGINT])
        return time.monotonic()

    run = fake_run(["ignores_the_end"], ["middle"], given=(f"wait={wait}",), clock=clock)
    assert run.run().stopped == "interrupted"
    assert all(ends(int(pid)) for pid in wait.read_text().split())


def test_a_worker_that_cannot_begin_is_started_once_for_all_cases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts = []

    def counted(order: Order) -> Child[Answer]:
        starts.append(order)
        return start(order)

    monkeypatch.setattr("vramkit.lab.turn.start", counted)
    run = fake_run(["good"])
    run.driver = "sim:no-such-card"
    found = run.run()
    assert len(starts) == 1
    assert {row.outcome for row in found.rows} == {"failed"}
    assert all("no-such-card" in row.why for row in found.rows)


def test_progress_counts_repetitions_and_says_the_time_left() -> None:
    run = fake_run(["good", "raises", "absent"], ["first", "middle"], repetitions=2)
    steps: list[Step] = []
    run.tell = steps.append
    run.run()
    assert {step.of for step in steps} == {12}
    done = [step.done for step in steps]
    assert done == sorted(done) and done[0] == 0
    # Five cases are measured twice; the one that fails counts as done with all its repetitions.
    assert done[-1] == 11
    assert steps[0].seconds_left is None
    assert steps[-1].seconds_left is not None and 0 < steps[-1].seconds_left < 60
    assert any(step.what == "middle, locked: good, 2 of 2" for step in steps)


def test_the_time_left_is_that_of_what_is_not_done() -> None:
    run = fake_run(["good", "writes"], ["first", "last"], repetitions=3)
    rows = Rows(run.report, run.subjects, run.cases)
    first, last = run.cases
    assert rows.seconds_left() is None
    rows.take("good", first, 0, Ended(0, "measured"), 4.0)
    rows.take("good", last, 0, Ended(1, "measured"), 1.0)
    assert rows.seconds_left() == 2 * 4 + 2 * 1 + 3 * 4 + 3 * 1
    rows.take("good", first, 1, Ended(0, "failed"), 2.0)
    assert rows.seconds_left() == 2 * 1 + 3 * 2 + 3 * 1


@pytest.mark.sim_only
def test_a_simulated_card_is_reset_over_the_user_s_own_settings(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driver.sim is not None
    monkeypatch.setenv("VRAMKIT_SIM", "devices=2,capacity=1GiB")
    reset_simulator(driver, "sim:pcie4-24gb", {"capacity": "2GiB"})
    settings = driver.sim.settings()
    assert (settings.devices, settings.capacity) == (2, 2 << 30)
    assert settings.profile == "pcie4-24gb"
