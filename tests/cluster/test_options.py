"""The options of tasks and actors. A stand-in for Ray says which nodes there are."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from vramkit.integrations.ray import options
from vramkit.integrations.ray.options import from_field
from vramkit.share.run import RunOptions

MIB = 1 << 20


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Of the cluster that this process is connected with; the test adds some."""
    found: list[dict[str, Any]] = []
    ray = SimpleNamespace(is_initialized=lambda: True, nodes=lambda: found)
    monkeypatch.setitem(sys.modules, "ray", ray)
    return found


def node(cards: int, mib: int, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"GPU": cards, "vram_mib": cards * mib}}


def test_resource_and_field_say_the_same() -> None:
    found = options("1.5GiB", weight=2, mode="paged")
    field = {"memory": 1536 * MIB, "weight": 2, "mode": "paged"}
    assert found == {"resources": {"vram_mib": 1536}, "runtime_env": {"vramkit": field}}
    assert from_field(field) == RunOptions("paged", 1536 * MIB, 2)


def test_part_of_a_mib_is_placed_as_a_whole_one() -> None:
    assert options(10 * MIB + 1)["resources"] == {"vram_mib": 11}


def test_own_runtime_env_is_kept() -> None:
    mine = {"env_vars": {"A": "1"}}
    assert options("1GiB", runtime_env=mine)["runtime_env"] == {
        "env_vars": {"A": "1"},
        "vramkit": {"memory": 1024 * MIB},
    }
    assert mine == {"env_vars": {"A": "1"}}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"memory": "much"}, "memory is 'much'"),
        ({"memory": "10KB"}, "1 MiB or more"),
        ({"memory": True}, "1 MiB or more"),
        ({"memory": "1GiB", "weight": 0}, "weight is 0; it may be 0.001 to 1000"),
        ({"memory": "1GiB", "priority": 4000}, "priority is 4000"),
        ({"memory": "1GiB", "mode": "fast"}, "mode is 'fast'; it may be swap, prefetch, paged"),
        ({"memory": "1GiB", "runtime_env": {"vramkit": {}}}, "which options.. makes"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        options(**given)


def test_several_cards_of_a_node_are_told_apart_by_parts(nodes: list[dict[str, Any]]) -> None:
    """Ray gives parts of one card: then no card gets more than it announced."""
    nodes += [node(1, 100_000), node(8, 30_000), node(4, 80_000), node(8, 1000, alive=False)]
    assert options(10_000 * MIB)["num_gpus"] == 0.3334
    # Too large for the smaller cards, which then cannot be meant.
    assert options(40_000 * MIB)["num_gpus"] == 0.5
    assert options(40_000 * MIB, gpu=0.25)["num_gpus"] == 0.25
    assert "num_gpus" not in options(40_000 * MIB, gpu=0)
    with pytest.raises(ValueError, match="the largest card announces 80000 MiB"):
        options(90_000 * MIB)


def test_nodes_of_one_card_need_no_parts(nodes: list[dict[str, Any]]) -> None:
    nodes += [node(1, 30_000), {"Alive": True, "Resources": {"CPU": 4.0}}]
    assert "num_gpus" not in options(10_000 * MIB)


@pytest.mark.parametrize(
    "field", [None, [], {"memory": "1GiB"}, {"unknown": 1}, {"log": "/tmp/x"}, {"pool": 1}]
)
def test_field_of_another_make_is_refused(field: object) -> None:
    with pytest.raises(ValueError, match="the field 'vramkit' of runtime_env"):
        from_field(field)
