"""What the lab says against real runs: how the comparison is judged, and what a failure leaves."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import lab_advice
import lab_replay
import machine
import pytest
from lab.runs import report
from lab_advice import Followed, follow, wanted
from lab_replay import Held, Replayed, Result
from lab_runs import FailedError, Found, Runner
from msgspec import structs

from vramkit.lab.advise.advising import Advised
from vramkit.lab.advise.observed import Observed
from vramkit.lab.advise.rules import Advice, Card, Prediction
from vramkit.lab.result import Quantity, Row, load, save

MACHINE = machine.Machine("a processor", 2, "Linux", "", "", "3.11", "", "")
GIB = 1 << 30
BUDGET = ["vramkit plan MODEL --budget 77MiB", 'vramkit.offload(model, budget="78MiB")']
PREDICTION = Prediction("pass", "time of a pass", 2.0, "s", "at least")
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


def test_a_subject_without_a_real_run_stands_below_with_what_it_would_hold() -> None:
    held = [Held("native", "torch", 10**9, 104 * 10**7)]
    on_all = {
        "torch": Replayed("measured", 104 * 10**7),
        "rmm_pool": Replayed("measured", 3 * 10**9),
        "arena": Replayed("out of memory"),
    }
    said = lab_replay.table(Result(MACHINE, False, held, on_all=on_all))
    assert said.count("| `torch` |") == 1
    assert "| `rmm_pool` | - | 3.00 | |" in said and "| `arena` | - | out of memory | |" in said
    assert "replayed on: torch (measured), rmm_pool (measured), arena (out of memory)." in said


WHOLE = Result(
    MACHINE,
    False,
    [Held("native", "torch", 100, 104)],
    [0.01] * 5,
    {"snapshot": True, "recording": True},
    on_all={"pool": Replayed("measured", 100), "rmm_pool": Replayed("out of memory")},
    outcomes={"pool": "measured", "rmm_pool": "timed out"},
)


@pytest.mark.parametrize(
    "fields",
    [
        {"held": [Held("native", "torch", 100)]},
        {"held": [Held("native", "torch", None, 104)]},
        {"slowdown": [0.01] * 4},
        {"round_trip": {"snapshot": True}},
        {"round_trip": {"snapshot": True, "recording": False}},
        {"outcomes": {}},
        {"outcomes": {"pool": "measured", "torch": "not run"}},
        {"on_all": {}},
        {"on_all": {"pool": Replayed("measured", 100), "torch": Replayed("not run")}},
        {"errors": ["why"]},
    ],
)
def test_a_figure_that_is_missing_is_no_success(fields: dict[str, object]) -> None:
    assert WHOLE.complete
    assert not structs.replace(WHOLE, **fields).complete


class Replays(Fake):
    """As Fake, and `vramkit replay` measures one more of the subjects in each call."""

    def __init__(self, folder: Path, **answers: Found) -> None:
        super().__init__(folder, **answers)
        self.words: list[list[str]] = []

    def vramkit(self, name: str, *words: object) -> None:
        given = [str(word) for word in words]
        self.words.append(given)
        options = dict(pairwise(given))
        goes_on = "--continue" in options
        path = Path(options["--continue" if goes_on else "--output"])
        subjects = options.get("--subjects", "pool,direct").split(",")
        rows = [Row("t", each) for each in subjects]
        quantities = {"held": Quantity("held", "bytes")}
        found = load(path) if goes_on else report(rows=rows, quantities=quantities)
        if goes_on and subjects == ["*"]:
            known = {row.subject for row in found.rows}
            found.rows += [Row("t", each) for each in ("pool", "direct") if each not in known]
        row = next((row for row in found.rows if row.outcome == "not run"), None)
        if row is not None:
            row.outcome, row.values = "measured", {"held": [1.0 * GIB]}
        save(found, path)


def test_a_call_does_what_the_one_before_it_has_left(tmp_path: Path) -> None:
    names = ["real_native", "real_native_expandable", "real_vramkit"]
    names += [f"{how}_{number}" for how in ("plain", "recorded") for number in range(5)]
    answers = {name: Found([1.0], GIB) for name in names}
    (tmp_path / "snapshot.pickle").write_bytes(b"")
    first = Replays(tmp_path, **{name: answers[name] for name in names[:2] + names[3:6]})
    first.answers |= {name: answers[name] for name in ("recorded_0", "recorded_1")}
    result = lab_replay.measure(first)
    assert not result.complete and len(result.slowdown) == 2
    words, on_all = first.words
    assert words[words.index("--subjects") + 1] == "torch,torch_expandable,pool"
    assert "--output" in words and "--continue" not in words
    assert on_all[on_all.index("--subjects") + 1] == "*" and "--continue" in on_all
    assert result.on_all.keys() == {"torch", "torch_expandable", "pool", "direct"}
    assert result.on_all["torch"] == Replayed("measured", GIB)
    assert result.on_all["direct"] == Replayed("not run")

    again = Replays(tmp_path, **answers)
    result = lab_replay.measure(again)
    assert again.asked[0] == "real_vramkit"
    assert not {"real_native", "plain_1", "recorded_1"} & set(again.asked)
    assert {"plain_2", "recorded_4"} <= set(again.asked)
    assert len(result.slowdown) == 5 and all(held.real for held in result.held)
    replayed, recorded, on_all = again.words
    assert "--continue" in replayed and "--output" not in replayed
    assert "--output" in recorded and "--subjects" not in recorded
    assert result.outcomes == {"pool": "measured", "direct": "not run"}
    assert on_all[-2:] == [on_all[on_all.index("--continue")], str(tmp_path / "replayed.json")]
    assert {each.outcome for each in result.on_all.values()} == {"measured"}


def test_a_result_is_of_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab_replay.measure(Fake(tmp_path))
    other = structs.replace(MACHINE, cpu="another processor")
    monkeypatch.setattr(machine, "collect", lambda: other)
    with pytest.raises(SystemExit, match=r"another machine or driver, .* --again begins anew"):
        lab_replay.measure(Fake(tmp_path))


def test_a_study_that_was_followed_is_not_followed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    measured: dict[str, float | None] = {"training": 2.0, "inference": None, "driver_calls": 2.0}

    def study(name: str):
        def rows(runner: Runner):
            asked.append(name)
            row = Followed(name, "offload", "do", "", "x", "bytes", "about", 2.0)
            yield structs.replace(row, measured=measured[name])
            if name == "driver_calls" and asked.count(name) == 1:
                raise FailedError("no card")

        rows.__name__ = name
        return rows

    for name in measured:
        monkeypatch.setattr(lab_advice, name, study(name))
    result = lab_advice.measure(Fake(tmp_path))
    assert result.errors == {"driver_calls": "no card"} and len(result.rows) == 3
    measured["inference"] = 3.0
    result = lab_advice.measure(Fake(tmp_path))
    assert asked == [*measured, "inference", "driver_calls"]
    assert result.errors == {} and [row.measured for row in result.rows] == [2.0, 3.0, 2.0]


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
    assert result.simulated and result.round_trip == {"snapshot": True}


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
    said = lab_advice.table(lab_advice.Result(MACHINE, False, {"inference": [row, failed]}))
    assert "at least 2.00 s | 2.50 s | yes |" in said and "| no memory | - |" in said


def test_the_budget_of_an_advice_is_what_is_given_to_offload() -> None:
    assert lab_advice.budget_of(OFFLOAD) == 78 << 20
    with pytest.raises(FailedError, match="no budget in"):
        lab_advice.budget_of(Advice("card", "do", "", "", [], ["vramkit replay TRACE"]))


def test_advice_that_was_not_given_is_named_with_what_there_is() -> None:
    seen = Observed("p", "tensors", 1, 1, 1, None, None)
    card = Card("a card", GIB, 1e9, 1e-6, 1e-6)
    advised = Advised(seen, None, card, [OFFLOAD])
    assert wanted(advised, "offload", "pass") == (OFFLOAD, PREDICTION)
    with pytest.raises(FailedError, match=r"no advice on batch .* there is offload: consider"):
        wanted(advised, "batch", "batch")


@pytest.mark.sim_only
def test_a_program_is_recorded_its_advice_followed_and_both_figures_kept(tmp_path: Path) -> None:
    """With processes, as on a card; of its programs the one that runs without."""
    result = lab_advice.measure(Runner(tmp_path, "sim", 100))
    assert result.errors == {}
    (row,) = result.rows
    assert (row.program, row.what, row.bound) == ("driver_calls", "saved of the run", "at most")
    assert row.measured is not None and row.error == ""
    assert json.loads((tmp_path / "lab_advice.json").read_text())["simulated"] is True
