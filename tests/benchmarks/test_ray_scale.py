"""The figures of docs/ray.md are those of the published result."""

from __future__ import annotations

import json

import programs
import ray_scale


def test_page_shows_the_published_result() -> None:
    found = json.loads(ray_scale.RESULT.read_text("utf-8"))
    assert found["actors"]["results_right"] and found["driver"] == "sim"
    page = ray_scale.PAGE.read_text("utf-8")
    made = programs.between_marks(page, "ray_scale", ray_scale.table(found))
    assert made == page, "python benchmarks/ray_scale.py publish"


def test_answers_of_nodes_are_read_and_laid_out() -> None:
    """A header, a line a card and a line a program."""
    found = ray_scale.measure_nodes(5, 2)
    assert found["lines"] == 1 + 5 + 5 * 2
    assert found["json_bytes"] > found["answer_bytes"] > 0
