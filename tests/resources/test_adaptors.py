"""What each adaptor adds; Recording has a file of its own."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from vramkit.driver import OutOfMemoryError
from vramkit.lab.baselines import FixedPool
from vramkit.resources import (
    Adaptor,
    Buffer,
    FailureCallback,
    Limit,
    Recording,
    Statistics,
    Tracking,
)

KIB = 1 << 10
MIB = 1 << 20


@pytest.mark.parametrize("resource", [None, 1, FixedPool])
def test_a_buffer_is_of_a_resource(resource: Any) -> None:
    with pytest.raises(TypeError, match=r"resource is .*; it must be one, with malloc"):
        Buffer(resource, 64)


# Any adaptor


def test_an_adaptor_leaves_its_upstream_open(below: FixedPool) -> None:
    with Statistics(below) as adaptor:
        assert adaptor.upstream is below
    assert adaptor.closed
    assert not below.closed


def test_an_adaptor_that_fails_gives_the_block_back(below: FixedPool) -> None:
    class Failing(Adaptor):
        def allocated(self, address: int, size: int, stream: object | None) -> object:
            raise RuntimeError("no")

    with Failing(below) as adaptor, pytest.raises(RuntimeError, match="no"):
        adaptor.malloc(KIB)
    assert below.live_blocks == 0


def test_an_adaptor_is_not_copied(below: FixedPool) -> None:
    class Own(Limit):
        pass

    with Own(below, MIB) as limit:
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="a Own can be neither copied nor pickled"):
                make(limit)


def test_an_adaptor_that_was_not_begun(below: FixedPool) -> None:
    class Forgetful(Limit):
        def __init__(self) -> None:
            self._used = 0

    adaptor = Forgetful()
    for use in (lambda: adaptor.malloc(1), lambda: adaptor.device, adaptor.close, adaptor.__repr__):
        with pytest.raises(TypeError, match=r"Forgetful.__init__ must call super\(\).__init__"):
            use()
    with pytest.raises(AttributeError, match="'Forgetful' object has no attribute 'other'"):
        adaptor.other()  # type: ignore[attr-defined]


def test_the_class_is_told(below: FixedPool) -> None:
    class Own(Statistics):
        pass

    adaptor = Own(below)
    assert repr(adaptor) == f"<Own over {below!r}>"
    adaptor.close()
    assert repr(adaptor) == f"<Own over {below!r}, closed>"


@pytest.mark.parametrize("upstream", [None, 5, "pool", FixedPool])
def test_an_upstream_is_a_resource(upstream: Any, tmp_path: Path) -> None:
    for make in (
        lambda: Statistics(upstream),
        lambda: Limit(upstream, 5),
        lambda: Tracking(upstream),
        lambda: FailureCallback(upstream, lambda size: False),
        lambda: Recording(upstream, tmp_path / "trace"),
    ):
        with pytest.raises(
            TypeError, match=r"upstream is .*; it must be a resource, with .*malloc"
        ):
            make()
    assert not (tmp_path / "trace").exists()


# Statistics


def test_statistics_count(below: FixedPool) -> None:
    with Statistics(below) as statistics:
        first, second = statistics.malloc(1000), statistics.malloc(500)
        statistics.free(first)
        third = statistics.malloc(200)
        counts = statistics.stats()
        assert (counts.allocation_count, counts.free_count) == (3, 1)
        assert (counts.total_allocated, counts.total_freed) == (1700, 1000)
        assert (counts.current_usage, counts.peak_usage) == (700, 1500)
        assert (counts.current_blocks, counts.peak_blocks) == (2, 2)
        with pytest.raises(OutOfMemoryError):
            statistics.malloc(9 * MIB)
        assert statistics.stats() == counts
        statistics.free(second)
        statistics.free(third)


def test_scopes_count_what_happens_in_them(below: FixedPool) -> None:
    with Statistics(below) as statistics:
        outside = statistics.malloc(1000)
        statistics.push()
        first = statistics.malloc(300)
        statistics.push()
        second = statistics.malloc(50)
        statistics.free(outside)
        inner = statistics.pop()
        statistics.free(first)
        outer = statistics.pop()
        assert (inner.allocation_count, inner.free_count, inner.peak_usage) == (1, 1, 50)
        assert (inner.current_usage, outer.current_usage) == (-950, -950)
        assert (outer.allocation_count, outer.free_count, outer.peak_usage) == (2, 2, 350)
        assert (statistics.stats().peak_usage, statistics.stats().current_usage) == (1350, 50)
        with pytest.raises(ValueError, match=r"pop\(\) without push\(\)"):
            statistics.pop()
        statistics.free(second)


# Limit


def test_a_limit_counts_bytes_as_asked_for(below: FixedPool) -> None:
    with Limit(below, 1000) as limit:
        first = limit.malloc(600)
        words = "asked for 401 bytes, of a limit of 1000 with 600 in use"
        with pytest.raises(OutOfMemoryError, match=words):
            limit.malloc(401)
        assert below.live_blocks == 1
        second = limit.malloc(400)
        assert (limit.used, limit.limit) == (1000, 1000)
        limit.free(first)
        assert limit.used == 400
        limit.free(second)


def test_a_request_that_fails_below_does_not_count(below: FixedPool) -> None:
    with Limit(below, 100 * MIB) as limit:
        with pytest.raises(OutOfMemoryError, match="FixedPool"):
            limit.malloc(9 * MIB)
        with pytest.raises(ValueError, match="size is -5"):
            limit.malloc(-5)
        assert limit.used == 0


def test_a_block_that_is_not_handed_out_does_not_count(below: FixedPool) -> None:
    class Failing(Limit):
        def allocated(self, address: int, size: int, stream: object | None) -> object:
            raise RuntimeError("no")

    with Failing(below, 1000) as limit:
        with pytest.raises(RuntimeError, match="no"):
            limit.malloc(600)
        assert (limit.used, below.live_blocks) == (0, 0)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_a_byte_or_more(below: FixedPool, limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit is {limit}; it may be an integer from 1"):
        Limit(below, limit)


# Tracking


def ask_here(tracking: Tracking, size: int) -> Buffer:
    return tracking.allocate(size)


def test_tracking_says_who_holds_what(below: FixedPool) -> None:
    with Tracking(below) as tracking:
        small, large = ask_here(tracking, 100), ask_here(tracking, 3000)
        raw = tracking.malloc(2000)
        blocks = tracking.outstanding()
        assert [block.size for block in blocks] == [3000, 2000, 100]
        assert [block.address for block in blocks] == [large.address, raw, small.address]
        assert [block.stack[0].function for block in blocks] == [
            "ask_here",
            "test_tracking_says_who_holds_what",
            "ask_here",
        ]
        assert blocks[0].stack[0].file == __file__
        assert blocks[0].stack[0].line == ask_here.__code__.co_firstlineno + 1
        assert blocks[0].stack[1].function == "test_tracking_says_who_holds_what"
        small.close()
        tracking.free(raw)
        assert tracking.outstanding() == [blocks[0]]
        large.close()
        assert tracking.report() == "0 bytes in 0 blocks from 0 place(s)"


def test_the_report_groups_by_stack(below: FixedPool) -> None:
    with Tracking(below, depth=1) as tracking:
        many = [ask_here(tracking, 1000) for _ in range(5)]
        one = tracking.allocate(4096)
        lines = tracking.report().splitlines()
        line = ask_here.__code__.co_firstlineno + 1
        assert lines[:3] == [
            "9,096 bytes in 6 blocks from 2 place(s)",
            "5,000 bytes in 5 blocks:",
            f"    {__file__}:{line} in ask_here",
        ]
        assert lines[3] == "4,096 bytes in 1 block:"
        assert len(lines) == 5
        del many, one


@pytest.mark.parametrize("depth", [0, -3])
def test_a_stack_has_a_frame(below: FixedPool, depth: int) -> None:
    with pytest.raises(ValueError, match=f"depth is {depth}; it may be an integer from 1"):
        Tracking(below, depth=depth)


# FailureCallback


def test_a_callback_may_make_room(below: FixedPool) -> None:
    cache = [below.allocate(3 * MIB), below.allocate(3 * MIB)]
    asked: list[int] = []

    def drop_one(size: int) -> bool:
        asked.append(size)
        return bool(cache) and cache.pop() is not None

    with FailureCallback(below, drop_one) as resource:
        resource.free(resource.malloc(7 * MIB))
        assert asked == [7 * MIB, 7 * MIB]
        with pytest.raises(OutOfMemoryError):
            resource.malloc(9 * MIB)
        assert asked[2:] == [9 * MIB]


def test_a_callback_is_asked_for_memory_errors_only(below: FixedPool) -> None:
    def never(size: int) -> bool:
        raise AssertionError

    with FailureCallback(below, never) as resource:
        with pytest.raises(ValueError, match="size is 0"):
            resource.malloc(0)
        with Limit(below, KIB) as limit, FailureCallback(limit, never) as limited:
            with pytest.raises(ValueError, match="1 to 1099511627776"):
                limited.malloc(2**64)
            with pytest.raises(AssertionError):
                limited.malloc(MIB)
        with pytest.raises(AssertionError):
            resource.malloc(9 * MIB)
    with pytest.raises(TypeError, match="must be callable"):
        FailureCallback(below, 7)  # type: ignore[arg-type]
