"""docs/ray.md shows what was measured with actors on a card, and says so where nothing was."""

from __future__ import annotations

from typing import Any

import machine
import programs
import pytest
import ray_actors
from msgspec.structs import replace

FOUND = ray_actors.Report(
    driver="cuda",
    actors=4,
    bytes_each=15 << 29,
    budget_bytes=20 << 30,
    rounds=12345,
    quantum_seconds=30.0,
    alone_seconds=[45.01] * 4,
    one_after_the_other_seconds=180.04,
    all_at_once_seconds=187.24,
    ratio=1.04,
    turns=9,
    moved_out_bytes=30 << 30,
    results_right=True,
    machine=machine.Machine("CPU", 16, "Linux", "NVIDIA H200", "", "", "", "2026-11-20T10:00:00Z"),
)


def test_page_shows_the_result_file() -> None:
    page = ray_actors.PAGE.read_text("utf-8")
    table = ray_actors.table(ray_actors.read(ray_actors.RESULT))
    made = programs.between_marks(page, "ray_actors", table)
    assert made == page, "python benchmarks/ray_actors.py publish"


def test_result_of_a_card_is_a_table() -> None:
    _, _, row, _, said = ray_actors.table(FOUND).split("\n")
    assert row == (
        "| 4 actors of 7.50 GiB in a budget of 20 GiB, quantum 30 s | 180.0 s | 187.2 s "
        "| 1.040 times as long (goal at most 1.05: met) |"
    )
    assert said == (
        "12,345 rounds in each; all at once 9 turns, 30 GiB moved out; results right. "
        "NVIDIA H200, 2026-11-20, measured once."
    )


@pytest.mark.parametrize(
    ("change", "shown"), [({"ratio": 1.06}, ": missed)"), ({"results_right": False}, "WRONG")]
)
def test_what_is_not_as_it_should_be_is_said(change: dict[str, Any], shown: str) -> None:
    assert shown in ray_actors.table(replace(FOUND, **change))
    assert shown not in ray_actors.table(FOUND)


def test_without_a_card_nothing_is_shown() -> None:
    assert ray_actors.table(None) == ray_actors.NOTHING
    assert ray_actors.table(replace(FOUND, driver="sim")) == ray_actors.NOTHING
