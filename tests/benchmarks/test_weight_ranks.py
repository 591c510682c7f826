"""The table of docs/ranks.md is that of the published result, which is the planner's of today."""

from __future__ import annotations

import msgspec
import programs
import pytest


def test_page_shows_the_published_result() -> None:
    pytest.importorskip("transformers")
    import weight_ranks

    page = weight_ranks.PAGE.read_text("utf-8")
    made = programs.between_marks(page, "weight_ranks", weight_ranks.page(weight_ranks.read()))
    assert made == page, "python benchmarks/weight_ranks.py publish"


@pytest.mark.sim_only
def test_published_result_is_what_the_planner_says() -> None:
    """One cell of each limit: the link, the gathering, the computation."""
    pytest.importorskip("transformers")
    import weight_models
    import weight_ranks

    model = weight_models.empty(weight_models.llama(layers=weight_ranks.LAYERS))
    rows = {(row.tokens, row.gather, row.plan.ranks): row.plan for row in weight_ranks.read().rows}
    limits = set()
    for cell in ((1, "300 GB/s", 4), (1, "300 GB/s", 8), (4096, "300 GB/s", 8)):
        made = weight_ranks.planned(model, *cell).chosen
        assert msgspec.to_builtins(made) == msgspec.to_builtins(rows[cell])
        limits.add(made.limit)
    assert limits == {"link", "gather", "compute"}
