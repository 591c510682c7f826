"""Pool.on_shortage(): a program that holds memory it can do without."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vramkit import Pool
from vramkit.driver import ClosedError, Device, OutOfMemoryError, Stream

from .support import MIB, run


@pytest.fixture
def pool(device: Device) -> Iterator[Pool]:
    with Pool(device=device, limit=16 * MIB, background=False) as made:
        yield made
        assert made.check_invariants() == ""


@pytest.fixture
def blocks(pool: Pool, owner: Stream) -> Iterator[list[int]]:
    """All that the pool may have."""
    made = [pool.malloc(4 * MIB, owner) for _ in range(4)]
    yield made
    for block in made:
        pool.free(block)


def gives(pool: Pool, blocks: list[int]) -> Callable[[int], int]:
    def give(nbytes: int) -> int:
        freed = 0
        while freed < nbytes and blocks:
            pool.free(blocks.pop())
            freed += 4 * MIB
        return freed

    return give


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    found: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: found.append(given.exc_value))
    return found


def test_a_callback_gives_memory_until_it_is_closed(
    pool: Pool, blocks: list[int], other: Stream
) -> None:
    with pool.on_shortage(gives(pool, blocks)):
        pool.free(pool.malloc(4 * MIB, other))
        assert len(blocks) == 3
        pool.free(pool.malloc(7 * MIB, other))  # 4 MiB of that are free
        assert len(blocks) == 2
    block = pool.malloc(8 * MIB, other)
    with pytest.raises(OutOfMemoryError):
        pool.malloc(4 * MIB, other)
    pool.free(block)
    assert len(blocks) == 2


def test_if_nothing_more_comes_the_malloc_fails(
    pool: Pool, blocks: list[int], other: Stream
) -> None:
    asked = []

    def give(nbytes: int) -> int:
        asked.append(nbytes)
        return 0

    with pool.on_shortage(give), pytest.raises(OutOfMemoryError):
        pool.malloc(4 * MIB, other)
    assert asked == [4 * MIB]


def test_an_error_of_a_callback_is_reported_and_the_next_one_is_asked(
    pool: Pool, blocks: list[int], other: Stream, unraisable: list[BaseException]
) -> None:
    def fails(nbytes: int) -> int:
        raise LookupError("no such block")

    with pool.on_shortage(fails), pool.on_shortage(gives(pool, blocks)):
        pool.free(pool.malloc(4 * MIB, other))
    assert len(blocks) == 3
    assert [type(error) for error in unraisable] == [LookupError]


@pytest.mark.parametrize("answer", [None, -1, "4 MiB", 1 << 64])
def test_an_answer_that_is_no_number_of_bytes_is_reported(
    pool: Pool,
    blocks: list[int],
    other: Stream,
    unraisable: list[BaseException],
    answer: Any,
) -> None:
    with pool.on_shortage(lambda nbytes: answer), pytest.raises(OutOfMemoryError):
        pool.malloc(4 * MIB, other)
    assert len(unraisable) == 1
    assert "must return how many bytes it freed" in str(unraisable[0])
    assert repr(answer) in str(unraisable[0])


def test_a_malloc_in_a_callback_asks_nobody(pool: Pool, blocks: list[int], other: Stream) -> None:
    calls = []

    def asks_itself(nbytes: int) -> int:
        calls.append(nbytes)
        with pytest.raises(OutOfMemoryError):
            pool.malloc(nbytes, other)
        return 0

    with pool.on_shortage(asks_itself), pytest.raises(OutOfMemoryError):
        pool.malloc(4 * MIB, other)
    assert len(calls) == 1


def test_threads_that_are_short_at_once(pool: Pool, blocks: list[int], device: Device) -> None:
    def churn() -> None:
        with device.stream() as stream:
            for _ in range(20):
                pool.free(pool.malloc(4 * MIB, stream), stream=stream)

    with pool.on_shortage(gives(pool, blocks)):
        run(churn, churn, churn)
    assert not blocks or len(blocks) < 4


def test_bad_input(pool: Pool) -> None:
    with pytest.raises(TypeError, match="callback is 3; it must be callable"):
        pool.on_shortage(3)  # type: ignore[arg-type]


def test_a_closed_pool_takes_no_callback(device: Device) -> None:
    pool = Pool(device=device, background=False)
    registered = pool.on_shortage(lambda nbytes: 0)
    pool.close()
    registered.close()
    registered.close()
    with pytest.raises(ClosedError):
        pool.on_shortage(lambda nbytes: 0)


def test_a_callback_that_is_closed_is_let_go(pool: Pool) -> None:
    class Holder:
        def give(self, nbytes: int) -> int:
            return 0

    holder = Holder()
    seen = weakref.ref(holder)
    registered = pool.on_shortage(holder.give)
    del holder
    gc.collect()
    assert seen() is not None
    registered.close()
    gc.collect()
    assert seen() is None
