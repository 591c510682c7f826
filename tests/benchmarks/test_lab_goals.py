"""What the lab says against real runs: how the comparison is judged, and what a failure leaves."""

from __future__ import annotations

import json
from pathlib import Path

import lab_advice
import lab_replay
import machine
import pytest
from lab_advice import Followed, follow, wanted
from lab_replay import Held, Result
from lab_runs import FailedError, Found, Runner

from vramkit.lab.advise.advising import Advised
from vramkit.lab.advise.observed import Observed
from vramkit.lab.advise.rules import Advice, Card, Prediction

MACHINE = machine.Machine("a processor", 2, "Linux", "", "", "3.11", "", "")
GIB = 1 << 30
BUDGET = ["vramkit plan MODEL --budget 77MiB", 'vramkit.offload(model, budget="78MiB")']
PREDICTION = Prediction("time of a pass", 2.0, "s", "at least")
OFFLOAD = Advice("offload", "consider", "offload it", "a rule", [PREDICTION], BUDGET)


class Fake(Runner):
    """Answers of programs, by their names; one that is missing has failed."""

    def __init__(self, folder: Path, **answers: Found) -> None:
        super().__init__(folder, "cuda", 100)
        self.answers = answers
        self.asked: list[str] = []

    def program(self, name: str, program: str, *, before=(), **options: object) -> Found:
        self.asked.append(name)
        if name not in self.answers:
            raise FailedError(f"{name}: status 3: why")
        return self.answers[name]

    def vramkit(self, name: str, *words: object) -> None:
        raise FailedError(f"{name}: no card")


def test_a_replay_is_compared_with_the_real_run() -> None:
    assert Held("native", "torch", 100, 104).off == pytest.approx(0.04)
    assert Held("native", "torch", 100).off is None
    near, far = (
        Held("native", "torch", 10**9, 104 * 10**7),
        Held("vramkit", "pool", 10**9, 2 * 10**9),
    )
    said = lab_replay.table(Result(MACHINE, False, [near, far], [0.02, 0.03, 0.04, 0.03, 0.03]))
    assert "| `torch` | 1.00 | 1.04 | +4.0% |" in said
    assert "| `pool` | 1.00 | 2.00 | +100.0%, above the goal of 5 % |" in said
    assert "+3.0% slower (+2.4% to +3.6%, 5 pairs); goal below 5%: met" in said
    slow = lab_replay.table(Result(MACHINE, True, [], [0.06] * 5))
    assert "not met" in slow and "none of these figures says anything" in slow


def test_a_run_that_fails_does_not_end_the_others_and_is_in_the_file(tmp_path: Path) -> None:
    runner = Fake(tmp_path, real_native=Found([1.0], GIB), plain_0=Found([2.0], None))
    result = lab_replay.measure(runner)
    assert [held.real for held in result.held] == [GIB, None, None]
    assert not result.complete
    kept = json.loads((tmp_path / "lab_replay.json").read_text())
    assert kept["held"][0]["real"] == GIB
    assert [error.partition(":")[0] for error in kept["errors"][:3]] == [
        "real_native_expandable",
        "replay_replayed",
        "recorded_0",
    ]


def test_the_trial_has_the_pool_alone_and_the_same_trace_comes_back(tmp_path: Path) -> None:
    runner = Fake(tmp_path)
    runner.driver = "sim"
    result = lab_replay.measure(runner)
    assert [held.subject for held in result.held] == ["pool"]
    assert result.simulated and result.round_trip is True


@pytest.mark.parametrize(
    ("bound", "measured", "holds"),
    [
        ("about", 104.0, True),
        ("about", 106.0, False),
        ("about", 94.0, False),
        ("at most", 99.0, True),
        ("at most", 101.0, False),
        ("at least", 101.0, True),
        ("at least", 99.0, False),
        ("about", None, None),
    ],
)
def test_a_prediction_holds_by_its_bound(bound, measured, holds) -> None:
    row = Followed("p", "offload", "do", "", "x", "bytes", bound, 100.0, measured)
    assert row.holds is holds


def test_advice_is_followed_with_its_figure_and_a_failure_is_a_row(tmp_path: Path) -> None:
    def fails() -> float:
        raise FailedError("no memory")

    row = follow("inference", (OFFLOAD, PREDICTION), lambda: 2.5)
    assert (row.predicted, row.measured, row.holds) == (2.0, 2.5, True)
    failed = follow("inference", (OFFLOAD, PREDICTION), fails)
    assert (failed.holds, failed.error) == (None, "no memory")
    said = lab_advice.table(lab_advice.Result(MACHINE, False, [row, failed]))
    assert "at least 2.00 s | 2.50 s | yes |" in said and "| no memory | - |" in said


def test_the_budget_of_an_advice_is_what_is_given_to_offload() -> None:
    assert lab_advice.budget_of(OFFLOAD) == 78 << 20
    with pytest.raises(FailedError, match="no budget in"):
        lab_advice.budget_of(Advice("card", "do", "", "", [], ["vramkit replay TRACE"]))


def test_advice_that_was_not_given_is_named_with_what_there_is() -> None:
    seen = Observed("p", "tensors", 1, 1, 1, None, None)
    card = Card("a card", GIB, 1e9, 1e-6, 1e-6)
    advised = Advised(seen, None, card, [OFFLOAD])
    assert wanted(advised, "offload", "time of a pass") == (OFFLOAD, PREDICTION)
    with pytest.raises(FailedError, match=r"no advice on batch .* there is offload: consider"):
        wanted(advised, "batch", "of today's batch")


@pytest.mark.sim_only
def test_a_program_is_recorded_its_advice_followed_and_both_figures_kept(tmp_path: Path) -> None:
    """With processes, as on a card; of its programs the one that runs without."""
    result = lab_advice.measure(Runner(tmp_path, "sim", 100))
    assert result.errors == []
    (row,) = result.followed
    assert (row.program, row.what, row.bound) == ("driver_calls", "saved of the run", "at most")
    assert row.measured is not None and row.error == ""
    assert json.loads((tmp_path / "lab_advice.json").read_text())["simulated"] is True
