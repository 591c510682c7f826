"""Plans over a grid: the same wherever they are made, and as plan() makes them one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramkit.driver import profiles
from vramkit.sweep import PlaceError, Stopped
from vramkit.sweep.local import LocalPlace
from vramkit.weights import Group, plan
from vramkit.weights.planner.profile_files import read_profile
from vramkit.weights.planner.result import Prediction
from vramkit.weights.planner.sweep import Grid, Source, plan_sweep
from vramkit.weights.planner.sweep_result import PlanSweep, Row, mark_best

from .headers import llama_layers, write_header

pytestmark = pytest.mark.sim_only

GROUPS = tuple(
    Group(layer, name, nbytes)
    for layer in range(6)
    for name, nbytes in (("attn", 100_000_000), ("ffn", 150_000_000))
)
SECONDS = (0.002, 0.003) * 6
BY_HAND = Source("six layers", GROUPS, SECONDS)
GRID = Grid(
    (BY_HAND,),
    profiles=("h200", "pcie4-24gb"),
    budgets=("1GB", "100MB", "2GB"),
    policies=("auto", "stage1"),
)


@pytest.fixture
def header(tmp_path: Path) -> Path:
    shapes = llama_layers(3, hidden=1024, intermediate=2048, keys=256)
    return write_header(tmp_path / "model.safetensors", shapes)


def swept(grid: Grid, workers: int = 1, **more: object) -> PlanSweep:
    return plan_sweep(grid, LocalPlace(workers), **more)  # type: ignore[arg-type]


def test_a_sweep_is_the_same_on_one_worker_and_on_two(monkeypatch: pytest.MonkeyPatch) -> None:
    one = swept(GRID)
    monkeypatch.setattr("vramkit.weights.planner.sweep.BATCH", 1)
    # Settings of this machine's simulated card play no part.
    monkeypatch.setenv("VRAMKIT_SIM", "devices=2,capacity=1MiB")
    assert swept(GRID, 2) == one
    assert one.planned == 6 and one.stopped == ""
    assert [(row.profile, row.budget, row.policy) for row in one.rows] == [
        (profile, budget, policy)
        for profile in GRID.profiles
        for budget in GRID.budgets
        for policy in GRID.policies
    ]


def test_each_row_is_what_plan_says(header: Path) -> None:
    grid = Grid((BY_HAND, Source(str(header))), budgets=("40MB", "800MB"), pass_seconds=None)
    rows = {(row.model, row.budget): row for row in swept(grid).rows}
    for budget in grid.budgets:
        row = rows[str(header), budget]
        made = plan(header, budget, compare=False)
        assert (row.plan, row.card) == (made.chosen, made.card)
    made = plan(GROUPS, "800MB", seconds=SECONDS, compare=False)
    assert rows["six layers", "800MB"].plan == made.chosen


def test_what_is_refused_is_a_row_with_the_reason(header: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"nothing")
    grid = Grid((Source(str(bad)), Source(str(header))), budgets=("1MB", "800MB"))
    found = swept(grid)
    assert [row.outcome for row in found.rows] == ["failed", "failed", "refused", "planned"]
    assert "bad.safetensors" in found.rows[0].why
    assert "too little for these weights: at least: a ring" in found.rows[2].why
    assert found.models[0].why == found.rows[0].why and found.models[1].layers == 3


def test_a_profile_in_a_file_goes_with_the_plans(tmp_path: Path) -> None:
    folder = tmp_path / "cards"
    folder.mkdir()
    (folder / "base.toml").write_text(
        'name = "base"\nextends = "h200"\n[link]\nhost_to_device_bytes_per_s = 2e10\n'
    )
    mine = folder / "mine.toml"
    mine.write_text('name = "mine"\nextends = "base.toml"\n')
    broken = folder / "broken.toml"
    broken.write_text('name = "broken"\nextends = "base"\n[link]\nspeed = 1\n')
    grid = Grid((BY_HAND,), profiles=(str(mine), str(broken)), budgets=("1GB",))
    fine, wrong = swept(grid).rows
    made = plan(GROUPS, "1GB", profile=mine, seconds=SECONDS, compare=False)
    assert fine.plan == made.chosen and made.link_bytes_per_s == 2e10
    assert wrong.outcome == "refused" and wrong.why.startswith('broken.toml:4: unknown key "speed"')
    assert swept(grid).rows[1] == wrong
    assert list(Path("/tmp").glob("vramkit-profile-*")) == []


def test_every_profile_by_name_is_known() -> None:
    assert [read_profile(name).files for name in profiles()] == [[]] * len(profiles())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"profiles": ("h300",)}, "the profile is 'h300'; it may be one of"),
        ({"budgets": ("1GB", "much")}, "budget is 'much'; it may be bytes"),
        ({"policies": ("auto", "fast")}, "policy is 'fast'; it may be"),
        ({"budgets": ("1GB", "1GB")}, "1GB is given twice"),
    ],
)
def test_a_wrong_grid_is_refused_before_anything_runs(
    change: dict[str, tuple[str, ...]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        swept(Grid((BY_HAND,), **change))  # type: ignore[arg-type]


def test_what_ends_early_keeps_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramkit.weights.planner.sweep.BATCH", 1)
    came: list[int] = []

    def check() -> None:
        if came:
            raise Stopped("interrupted")

    found = swept(GRID, check=check, row=lambda row, done: came.append(done))
    assert found.stopped == "interrupted"
    assert sum(row.outcome != "not run" for row in found.rows) == len(came) < len(found.rows)
    assert came == list(range(1, len(came) + 1))

    def fail() -> None:
        raise PlaceError("no CPUs any more")

    assert swept(GRID, check=fail).stopped == "no CPUs any more"


def prediction(pass_s: float, device_bytes: int) -> Prediction:
    return Prediction(
        *("auto", 0, None, 0, 0, 0, device_bytes, 0, pass_s, pass_s, 0.0, 0.0, pass_s),
        *("link", 1.0),  # type: ignore[arg-type]
    )


def test_the_best_is_the_fastest_and_of_equal_ones_the_smallest() -> None:
    given = [("a", 2.0, 1), ("a", 1.0, 9), ("a", 1.0005, 5), ("a", 1.002, 1), ("b", 3.0, 1)]
    rows = [
        Row("model", card, str(number), "auto", plan=prediction(pass_s, nbytes))
        for number, (card, pass_s, nbytes) in enumerate(given)
    ]
    rows.append(Row("model", "b", "none", "auto"))
    mark_best(rows)
    assert [row.best for row in rows] == [False, False, True, False, True, False]
