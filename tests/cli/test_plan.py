"""`vramkit plan`: what it prints, its JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from vramkit.report.blocks import Table
from vramkit.weights import Plan
from vramkit.weights.planner.arithmetic import Rates
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
