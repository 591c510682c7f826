"""`vramkit plan`: what it prints, its JSON, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from vramkit.report.blocks import Table
from vramkit.sweep.tasks import Ended
from vramkit.weights import Plan
from vramkit.weights.planner import sweep as planner_sweep
from vramkit.weights.planner.arithmetic import Rates
from vramkit.weights.planner.sweep_result import PlanSweep, Row
from vramkit.weights.planner.words import blocks

from .support import VramkitHere

BY_HAND = (
    *("--layers", "20", "--attn-bytes", "100MB", "--ffn-bytes", "150MB"),
    *("--attn-ms", "80", "--ffn-ms", "120", "--profile", "weight-streaming"),
)


def test_a_plan_says_that_it_is_simulated_and_on_what(vramkit_here: VramkitHere) -> None:
    done = vramkit_here("plan", *BY_HAND, "--budget", "1GB")
    assert done.status == 0 and done.stderr == ""
    first, *lines = done.stdout.splitlines()
    assert (
        first == "vramkit plan on unnamed card, 5 GB/s link (simulated, profile weight-streaming)"
    )
    said = " ".join(done.stdout.split())
    assert "20 layers given by hand: 4.66 GiB of weights, 20 layers, 40 groups" in said
    assert "4.00 s a pass, as given for each group" in said
    assert "compute-bound: 1.000 of the bound; the weights arrive in time" in said
    assert "bound (compute)" in said
    for title in (
        "Policies, with 954 MiB",
        "Ring and residents",
        "What more memory buys",
        "The first 5 layers",
    ):
        assert sum(title in line and "(simulated)" in line for line in lines) == 1, title
    assert "this plan" in said and "all resident" in said and "nothing" in said


def test_json_is_the_whole_plan(vramkit_here: VramkitHere) -> None:
    done = vramkit_here("plan", *BY_HAND, "--budget", "1GB", "--json")
    assert done.status == 0 and done.stderr == ""
    plan = msgspec.json.decode(done.stdout, type=Plan)
    assert plan.simulated and plan.profile == "weight-streaming"
    assert plan.chosen.budget == 10**9 and plan.chosen.pass_s == pytest.approx(4.0, rel=1e-3)
    assert plan.policies and plan.splits and plan.budgets
    assert {"bound_s", "link_utilisation", "limit"} <= json.loads(done.stdout)["chosen"].keys()
    assert len(list(blocks(plan))) == 8


def test_the_compute_time_says_where_it_is_from(vramkit_here: VramkitHere) -> None:
    plan = msgspec.json.decode(vramkit_here("plan", *BY_HAND, "--json").stdout, type=Plan)
    rates = Rates(612.5e12, 447.8e12, 2.117e12)
    for changes, words in [
        (
            {"compute_from": "measured pass"},
            "from one measured pass, divided among groups by bytes",
        ),
        ({"compute_from": "measured pass", "rates": rates}, "groups by the profile's rates"),
        (
            {"compute_from": "profile", "rates": rates},
            "by the profile's rates for bf16: matmul 612",
        ),
    ]:
        first = next(iter(blocks(msgspec.structs.replace(plan, **changes))))
        assert isinstance(first, Table)
        assert words in dict(first.rows)["compute"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "plan needs a model: vramkit plan FOLDER, or --layers with --attn-bytes"),
        (("nowhere",), "there is no nowhere; the model may be a folder"),
        (("nowhere", *BY_HAND), "a model and layers by hand"),
        ((*BY_HAND, "--pass-ms", "5"), "--pass-ms and layers by hand"),
        (("--layers", "3", "--attn-ms", "1"), "missing: --attn-bytes, --ffn-bytes, --ffn-ms"),
        ((*BY_HAND[:1], "0", *BY_HAND[2:]), "--layers is 0; it may be 1 to 10000"),
        ((*BY_HAND[:3], "10%", *BY_HAND[4:]), "--attn-bytes is '10%'; it may be bytes"),
        ((*BY_HAND[:7], "-1", *BY_HAND[8:]), "--attn-ms is -1.0; it may be 0 or more"),
        ((*BY_HAND, "--budget", "lots"), "budget is 'lots'; it may be bytes"),
        ((*BY_HAND, "--ring", "two"), "--ring is 'two'; it may be bytes"),
        ((*BY_HAND, "--policy", "fast"), "policy is 'fast'; it may be a Policy, or auto"),
        (("nowhere", "--pass-ms", "0"), "--pass-ms is 0.0; it may be a number above 0"),
    ],
)
def test_wrong_usage_is_one_line(
    vramkit_here: VramkitHere, arguments: tuple[str, ...], words: str
) -> None:
    done = vramkit_here("plan", *arguments)
    assert done.status == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("vramkit: ") and words in done.stderr


def test_what_the_child_refuses_is_one_line_too(vramkit_here: VramkitHere) -> None:
    done = vramkit_here("plan", *BY_HAND, "--budget", "100MB")
    assert done.status == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "too little for these weights: at least: a ring of the largest group" in done.stderr


def test_missing_packages_are_told(
    vramkit_here: VramkitHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vramkit.weights.planner.config.find_spec", lambda name: None)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    done = vramkit_here("plan", str(tmp_path))
    assert done.status == 1
    assert "install torch and transformers, or give the checkpoint" in done.stderr


GRID = ("--budget", "1GB,4GB,100MB", "--policy", "auto,stage1", "--workers", "2")


def test_several_make_a_table_with_a_row_each(vramkit_here: VramkitHere) -> None:
    done = vramkit_here("plan", *BY_HAND, *GRID)
    assert done.status == 0 and done.stderr == ""
    assert done.stdout.startswith("vramkit plan: 6 plans (simulated)\n")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows if row[1:2] in (["auto"], ["stage1"])] == [
        [budget, policy] for budget in ("1GB", "4GB", "100MB") for policy in ("auto", "stage1")
    ]
    # What is the same for all stands above it.
    assert ["model", "20", "layers"] in rows and ["card", "weight-streaming"] in rows
    assert [row[0] for row in rows if row[-1:] == ["best"]] == ["1GB"]
    assert sum(row[-1:] == ["refused"] for row in rows) == 3
    assert ["without", "figures", "why"] in rows


def test_the_table_is_the_same_document_on_any_number_of_workers(
    vramkit_here: VramkitHere,
) -> None:
    given = ("plan", *BY_HAND[:1], "10,20", *BY_HAND[2:], *GRID[:4], "--json")
    one, two, default = (
        vramkit_here(*given, *more) for more in (("--workers", "1"), ("--workers", "2"), ())
    )
    assert one.status == 0 and one.stderr == ""
    assert one.stdout == two.stdout == default.stdout
    found = msgspec.json.decode(one.stdout, type=PlanSweep)
    assert [model.model for model in found.models] == ["10 layers", "20 layers"]
    assert len(found.rows) == 12 and found.planned == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*BY_HAND, "--workers", "2"), "--workers is for a table: several models, budgets"),
        ((*BY_HAND, "--on", "ray"), "--on is for a table"),
        ((*BY_HAND, *GRID[:4], "--workers", "0"), "--workers is 0; it may be 1 or more"),
        ((*BY_HAND, *GRID, "--on", "ray"), "--workers is for this machine"),
        ((*BY_HAND, *GRID[:4], "--on", "dask"), "--on is 'dask'; it may be ray"),
        ((*BY_HAND, "--budget", "1GB,1GB"), "1GB is given twice"),
        ((*BY_HAND, "--budget", ","), "--budget is ','; it may be one value, or several"),
        ((*BY_HAND, "--profile", "h200,h300"), "the profile is 'h300'; it may be one of"),
        (("--layers", "5,0", *BY_HAND[2:]), "--layers is 0; it may be 1 to 10000"),
    ],
)
def test_wrong_usage_of_a_table_is_one_line(
    vramkit_here: VramkitHere, arguments: tuple[str, ...], words: str
) -> None:
    done = vramkit_here("plan", *arguments)
    assert done.status == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and words in done.stderr


def test_nothing_planned_is_a_problem(vramkit_here: VramkitHere) -> None:
    done = vramkit_here("plan", "nowhere", "nothing", "--json")
    assert done.status == 1
    rows = json.loads(done.stdout)["rows"]
    assert [row["outcome"] for row in rows] == ["failed", "failed"]
    assert "there is no nowhere" in rows[0]["why"]


def test_ctrl_c_keeps_the_plans_that_are_made(
    vramkit_here: VramkitHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vramkit.weights.planner.sweep.BATCH", 1)
    fill = planner_sweep._fill

    def fill_and_press(row: Row, ended: Ended) -> None:
        fill(row, ended)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(planner_sweep, "_fill", fill_and_press)
    done = vramkit_here("plan", *BY_HAND, *GRID)
    assert done.status == 130
    assert "This sweep ended early: interrupted." in done.stdout and "not run" in done.stdout
    assert done.stderr.startswith("vramkit plan: interrupted; ")


def test_ray_that_is_missing_is_one_line(
    vramkit_here: VramkitHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = vramkit_here("plan", *BY_HAND, *GRID[:4], "--on", "ray:127.0.0.1:1")
    assert done.status == 1 and done.stdout == ""
    assert "install vramkit[ray]" in done.stderr and len(done.stderr.splitlines()) == 1


def test_several_cards_that_gather(vramkit_here: VramkitHere) -> None:
    given = ("plan", *BY_HAND, "--budget", "2GB", "--gather-rate", "50")
    one = vramkit_here(*given, "--ranks", "4")
    said = " ".join(one.stdout.split())
    assert one.status == 0 and "4 cards, each with a link; 2." in said
    assert "a pass from the others at 50.0 GB/s: " in said
    several = vramkit_here(*given, "--ranks", "1,4")
    assert several.status == 0
    lines = [" ".join(line.split()) for line in several.stdout.splitlines()]
    assert "ranks a pass of bound limit link memory" in lines
    assert sum(line.startswith(("1 4.00 s", "4 4.00 s")) for line in lines) == 2
    rows = msgspec.json.decode(vramkit_here(*given, "--ranks", "1,4", "--json").stdout)["rows"]
    assert [(row["ranks"], row["plan"]["ranks"], row["best"]) for row in rows] == [
        (1, 1, True),
        (4, 4, True),
    ]
    alone, shared = (row["plan"] for row in rows)
    assert (
        3.9
        < alone["link_s"] / shared["link_s"] * (shared["streamed_bytes"] / alone["streamed_bytes"])
        < 4.1
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ranks", "two"), "--ranks is two; it may be a number of cards"),
        (("--ranks", "0"), "ranks is 0"),
        (("--ranks", "4"), "4 ranks need gather_bytes_per_s"),
        (("--gather-rate", "50"), "has no effect with one rank"),
        (("--ranks", "1,2"), "2 ranks need gather_bytes_per_s"),
        (("--ranks", "2,2", "--gather-rate", "50"), "2 is given twice"),
    ],
)
def test_wrong_ranks_are_one_line(
    vramkit_here: VramkitHere, options: tuple[str, ...], says: str
) -> None:
    done = vramkit_here("plan", *BY_HAND, "--budget", "1GB", *options)
    assert done.status == 2 and done.stdout == ""
    assert says in done.stderr and done.stderr.count("\n") == 1
