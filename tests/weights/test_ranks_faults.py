"""Ranks that fail, die, leave or differ: one clear error on the others, and no wait without end."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from vramkit import offload
from vramkit.weights.ranks import refuse_beside_group
from vramkit.weights.team import LOOK, ends

from .models import stack
from .ranks import Ranks, ranks
from .test_ranks import check_nothing_left

__all__ = ["ranks"]

pytestmark = [pytest.mark.sim_only]

END = "; the ranks stream the weights of the model together, and end here"


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_is_killed_in_a_pass(ranks: Ranks, size: int) -> None:
    """The others say which, and their models are whole afterwards. Offloading again waits for it in
    vain, and not for ever."""
    answers = ranks.run("fail_in_pass", size, how="killed", again=size == 2, timeout=6)
    assert answers.pop(1) == {"ended": 9}
    results = [answer["ok"] for answer in answers]
    check_nothing_left(results)
    for result in results:
        kind, text = result["met"]
        assert kind == "RankError"
        assert re.fullmatch(rf"rank 1 of {size} \(process \d+ on .+\) has ended{END}", text)
        assert result["passes"] == 2 and result["closed"] and result["restored"]
        if size == 2:
            assert "a rank is gone, or did not answer within 6 s" in result["again"]
    assert len({result["met"][1] for result in results}) == 1


@pytest.mark.parametrize(
    ("how", "own", "told"),
    [
        ("error", "ValueError", "ValueError: no more"),
        ("interrupt", "KeyboardInterrupt", "KeyboardInterrupt: no more"),
        ("copy", "RankError", "group 0.0 was not copied: cuMemcpyHtoDAsync returned 999"),
    ],
)
def test_a_rank_fails_in_a_pass(ranks: Ranks, how: str, own: str, told: str) -> None:
    """The others are told why, and all can begin again."""
    results = ranks.results("fail_in_pass", 3, how=how)
    check_nothing_left(results)
    for rank, result in enumerate(results):
        kind, text = result["met"]
        assert kind == (own if rank == 1 else "RankError")
        if kind == "RankError":
            assert re.fullmatch(rf"rank 1 of 3 \(.*\) failed: {told}{END}", text)
        assert result["passes"] == 2 and result["closed"] and result["restored"]
        assert result["again"] == ""


@pytest.mark.parametrize(("at", "own"), [("filling", "ValueError"), ("pinning", "DriverError")])
def test_a_rank_fails_while_weights_move(ranks: Ranks, at: str, own: str) -> None:
    """No weight is lost, and none is shared afterwards."""
    results = ranks.results("fail_while_weights_move", 3, at=at)
    check_nothing_left(results)
    for rank, result in enumerate(results):
        assert result["met"][0] == (own if rank == 1 else "RankError")
        if rank != 1:
            assert re.match(rf"rank 1 of 3 \(.*\) failed: {own}", result["met"][1])
        assert result["whole"] and result["again"] and result["apart"]


def test_a_wait_for_another_rank_is_interrupted(ranks: Ranks) -> None:
    """The other one is told, though what they wait for together is still exchanged."""
    first, second = ranks.results("interrupted_wait", 2)
    check_nothing_left([first, second])
    assert first["met"][0] == "KeyboardInterrupt"
    kind, text = second["met"]
    assert kind == "RankError"
    assert re.match(r"rank 0 of 2 \(.*\) failed: KeyboardInterrupt", text)


def test_a_rank_closes_before_the_others(ranks: Ranks) -> None:
    first, second = ranks.results("leave_early", 2)
    check_nothing_left([first, second])
    assert first["met"] == ""
    assert "has closed its Offload, and others have not" in second["met"]


def test_ranks_use_groups_in_different_orders(ranks: Ranks) -> None:
    results = ranks.results("other_order", 2)
    check_nothing_left(results)
    assert len({result["met"] for result in results}) == 1
    assert re.match(r"rank 0 gathers group \d\.\d and rank 1 group \d\.\d: all", results[0]["met"])


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("budget", "budget must be the same on all ranks: it is 3565158 on rank 0 and 3670016 on"),
        ("policy", "policy must be the same on all ranks: it is auto on rank 0 and stage1 on"),
        ("ring", "ring must be the same on all ranks: it is 2097152 on rank 0 and 1048576 on"),
        ("layers", "different models: rank 0 has 16 weights to stream, rank 2 has 18"),
        ("names", "different models: rank 0 has 0.0: a.0.weight, rank 2 has 0.0: b.0.weight"),
    ],
)
def test_ranks_differ(ranks: Ranks, what: str, says: str) -> None:
    """The same error on all, before anything has moved."""
    results = ranks.results("differ", 3, what=what)
    check_nothing_left(results)
    for result in results:
        kind, text = result["met"]
        assert kind == "ValueError" and says in text
        assert result["untouched"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"packing": "bf16-12"}, "packing and group cannot be used together"),
        ({"experts": "routed"}, "experts and group cannot be used together: the tokens of each"),
        ({"pool": object()}, "pool and group cannot be used together: residents would give way"),
        ({"source": print}, "source and group cannot be used together: a function would load"),
    ],
)
def test_settings_that_a_group_excludes(settings: dict[str, Any], says: str) -> None:
    usual = {"packing": "auto", "experts": "whole", "pool": None, "source": "a path"}
    refuse_beside_group(**usual)
    with pytest.raises(ValueError, match=says):
        refuse_beside_group(**{**usual, **settings})


def test_a_group_is_one_of_torch_distributed() -> None:
    model = stack(16, 16)
    with pytest.raises(TypeError, match=r"group is 3; it may be None, or a ProcessGroup of torch"):
        offload(model, "1GiB", group=3)


def test_one_rank_has_a_bad_setting(ranks: Ranks) -> None:
    results = ranks.results("differ", 2, what="packing")
    check_nothing_left(results)
    text = "ValueError: packing and group cannot be used together"
    assert text in results[0]["met"][1] and results[0]["met"][0] == "RankError"
    assert results[1]["met"][0] == "ValueError"
    assert all(result["untouched"] for result in results)


def test_nodes_read_different_files(ranks: Ranks) -> None:
    answers = ranks.run("nodes", 4, source="other")
    says = "the source has other weights on rank 2 than on rank 0"
    assert [_met(answer) for answer in answers] == [("ModelError", says)] * 4


def _met(answer: Any) -> tuple[str, str]:
    return answer["error"], answer["message"]


class StandInWork:
    """A collective that is not done when a wait for it gives up, and then what the test says."""

    def __init__(self, then: str) -> None:
        self._then = then
        self.waits: list[timedelta | None] = []

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.waits.append(timeout)
        if len(self.waits) == 1:
            raise RuntimeError("Operation timed out!")
        assert self._then != "not done", "a wait without end"
        if self._then == "failed":
            raise RuntimeError("Connection closed by peer")
        return True

    def is_completed(self) -> bool:
        return self._then != "not done"


def test_a_collective_that_ends_between_a_wait_and_the_look_at_it() -> None:
    """A wait that gave up says nothing about a collective that has ended since."""
    done, under_way, failed = (StandInWork(then) for then in ("done", "not done", "failed"))
    assert ends(done, LOOK) is True
    assert ends(under_way, LOOK) is False
    with pytest.raises(RuntimeError, match=r"^Connection closed by peer$"):
        ends(failed, LOOK)
    assert (done.waits, under_way.waits, failed.waits) == ([LOOK, None], [LOOK], [LOOK, None])
