"""Several processes stream a model together: each copies a share, and they gather the rest."""

from __future__ import annotations

from typing import Any

import pytest

from .ranks import Ranks, ranks

__all__ = ["ranks"]

pytestmark = [pytest.mark.sim_only]


@pytest.mark.parametrize(("family", "twice"), [("llama", 0), ("t5", 51_200)])
def test_outputs_are_those_of_the_model_alone(ranks: Ranks, family: str, twice: int) -> None:
    """T5 uses its embedding twice in a pass."""
    results = ranks.results("infer", 2, family=family)
    for result in results:
        assert result["reports"] == [] and result["live"] == {}
        assert result["same"] == [True] * 4 and result["generated"] and result["restored"]
        assert result["misses"] == 0
        assert result["pass_copies"] == result["groups"] + bool(twice) > 4
    assert len({result["digest"] for result in results}) == 1
    check_bytes(results, twice)


def check_bytes(results: list[Any], twice: int = 0) -> None:
    """Each rank has copied its part of a pass, and no more; host memory has the weights once."""
    size = len(results)
    for result in results:
        assert result["pass_bytes"] == result["expected"] + twice // size
        assert result["sent"] == result["expected"]
        rest = 512 * size * result["groups"]  # at the ends of groups
        assert size * result["expected"] - result["streamed"] in range(rest)
    memories = [result["memory"] for result in results]
    assert len({memory["inode"] for memory in memories}) == 1
    # Each page counts by its share for the ranks that have touched it: all of them once.
    whole = results[0]["host_bytes"]
    assert sum(memory["Pss"] for memory in memories) in range(whole, whole + 4096 * size)
