"""Several processes stream a model together: each copies a share, and they gather the rest."""

from __future__ import annotations

from typing import Any

import pytest

from .ranks import Ranks, ranks

__all__ = ["ranks"]

pytestmark = [pytest.mark.sim_only]


def check_nothing_left(results: list[Any]) -> None:
    for result in results:
        assert result["reports"] == [] and result["live"] == {}


@pytest.mark.parametrize(
    ("size", "family", "twice"),
    [(2, "llama", 0), (2, "t5", 51_200), (4, "llama", 0), (4, "t5", 51_200)],
)
def test_outputs_are_those_of_the_model_alone(
    ranks: Ranks, size: int, family: str, twice: int
) -> None:
    """T5 uses its embedding twice in a pass."""
    results = ranks.results("infer", size, family=family, budget="4.2MiB")
    check_nothing_left(results)
    for rank, result in enumerate(results):
        assert f"rank {rank} of {size}; each copies its share" in result["report"]
        assert result["same"] == [True] * 4 and result["generated"] and result["restored"]
        assert result["misses"] == 0
        assert result["pass_copies"] == result["groups"] + bool(twice) > 4
    assert len({result["digest"] for result in results}) == 1
    assert results[0]["planned"] == [size, results[0]["sent"]]
    check_bytes(results, twice)


def check_bytes(results: list[Any], twice: int = 0) -> None:
    """Each rank has copied its part of a pass, and no more; host memory has the weights once."""
    size = len(results)
    for result in results:
        assert result["pass_bytes"] == result["expected"] + twice // size
        assert result["sent"] == result["expected"]
        # The ends of groups, less than 512 bytes for each rank, go to all of them.
        rest = (size - 1) * 512 * size * result["groups"]
        assert size * result["expected"] - result["streamed"] in range(rest)
    memories = [result["memory"] for result in results]
    assert len({memory["inode"] for memory in memories}) == 1
    # Each page counts by its share for the ranks that have touched it: all of them once. Shares
    # are rounded down, and the last page may be a huge one.
    whole = results[0]["host_bytes"]
    assert 0.99 * whole < sum(memory["Pss"] for memory in memories) < whole + (2 << 20)


@pytest.mark.parametrize("checkpoint", ["off", "not reentrant"])
def test_gradients_are_those_of_the_model_alone(ranks: Ranks, checkpoint: str) -> None:
    results = ranks.results("train", 2, checkpoint=checkpoint)
    check_nothing_left(results)
    for result in results:
        assert result["same"] == [True] * 4 and result["stepped"]
        # Backward brings most groups once more, and none more often than forward.
        assert result["streamed"] / 2 < result["pass_bytes"] <= result["streamed"] + 512 * 32


def test_many_offloads_one_after_another(ranks: Ranks) -> None:
    """A rank that is done first does not take back what it has sent."""
    results = ranks.results("many_times", 3, times=9)
    check_nothing_left(results)
    assert all(result["same"] == [True] * 9 for result in results)


def test_collectives_of_the_program_run_between_those_of_the_weights(ranks: Ranks) -> None:
    results = ranks.results("beside", 2)
    check_nothing_left(results)
    assert all(result["same"] == [True] * 3 for result in results)


@pytest.mark.parametrize("source", ["", "same"])
def test_each_node_has_one_copy(ranks: Ranks, source: str) -> None:
    """With `source`, each node reads its own files."""
    results = ranks.results("nodes", 4, source=source)
    check_nothing_left(results)
    for result in results:
        assert result["same"] == [True] * 2 and result["after"]
    first, second, third, fourth = (result["inode"] for result in results)
    assert first == second != third == fourth


def test_ranks_with_other_weights_stream_their_own(ranks: Ranks) -> None:
    """A model that is split between the ranks already. They need not run equally many passes."""
    for how in ("equal", "unequal"):
        results = ranks.results("split", 2, how=how)
        check_nothing_left(results)
        for result in results:
            assert result["same"] and result["pass_bytes"] == result["streamed"]
            assert "different weights, and each streams its own" in result["report"]
        sizes = {result["streamed"] for result in results}
        assert len(sizes) == (1 if how == "equal" else 2)


def test_weights_that_are_written(ranks: Ranks) -> None:
    """Not while the ranks share them; on the card they are kept, and afterwards each rank has its
    own."""
    results = ranks.results("write", 2)
    check_nothing_left(results)
    for result in results:
        assert "1.weight was written while all ranks use the same memory" in result["met"]
        assert result["kept"] and result["private"]


def test_a_tensor_parallel_model_streams_its_parts(ranks: Ranks) -> None:
    results = ranks.results("parallel", 2)
    check_nothing_left(results)
    for result in results:
        assert result["same"] == [True] * 3 and result["close"] and result["restored"]
        assert result["written"]
        assert result["pass_bytes"] == result["streamed"] < 0.52 * result["whole"]
        assert "different weights, and each streams its own" in result["report"]
        assert "is a DTensor and streamed: call the model under torch.no_grad()" in result["met"]


def test_one_rank_is_a_group_too(ranks: Ranks) -> None:
    """What it stages is a whole group at a time."""
    (result,) = ranks.results("infer", 1, family="llama", budget="5.6MiB")
    check_nothing_left([result])
    assert result["same"] == [True] * 4 and result["generated"] and result["restored"]
    assert result["pass_bytes"] == result["streamed"] == result["expected"]
