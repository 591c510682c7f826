"""The workloads of the experiment, for any engine.

A worker is a thread with a stream. It makes its columns once and then goes through its item again
and again; between the operations of an item (each `yield`) the other workers have their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vramkit.lab.allocators.engine import Engine

Item = Callable[[Engine, list[int]], Iterator[None]]
MEGA = 1_000_000


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    workers: int
    rows: tuple[int, ...]
    """Of the columns, by worker; a shorter tuple starts over."""
    items: int
    """That each worker goes through."""
    columns: str
    """Of each worker: v for one of values, k for one of keys, u for one of unique keys."""
    item: Item
    arms: tuple[str, ...] = ("",)
    on_one_stream: bool = False
    """Whether each worker needs no other stream and no kernel but the engine's own."""

    def rows_of(self, worker: int, scale: float) -> int:
        return max(1, round(self.rows[worker % len(self.rows)] * scale))

    def prepare(self, engine: Engine, rows: int) -> list[int]:
        makers: dict[str, Callable[[int], int]] = {
            "v": engine.column,
            "k": lambda rows: engine.column(rows, keys=True),
            "u": engine.unique_keys,
        }
        return [makers[kind](rows) for kind in self.columns]


def _simple(engine: Engine, columns: list[int]) -> Iterator[None]:
    values, more, keys = columns
    total = engine.add(values, more)
    yield
    kept = engine.filter(total, keys)
    yield
    twice = engine.add(kept, kept)
    engine.free(total, kept)
    yield
    engine.free(twice)


def _complex(engine: Engine, columns: list[int]) -> Iterator[None]:
    values, keys, unique = columns
    total = engine.add(values, unique)
    yield
    ranked = engine.sort(total)
    engine.free(total)
    yield
    groups = engine.group_by(keys, ranked)
    yield
    joined = engine.join(keys, unique)
    yield
    kept = engine.filter(joined, keys)
    yield
    engine.free(ranked, groups, joined, kept)


def _aggregate(engine: Engine, columns: list[int]) -> Iterator[None]:
    values, more, keys = columns
    total = engine.add(values, more)
    yield
    ranked = engine.sort(total)
    yield
    groups = engine.group_by(keys, ranked)
    yield
    engine.free(total, ranked, groups)


def _churn(engine: Engine, columns: list[int]) -> Iterator[None]:
    """Three columns at a time are made, used and gone."""
    values, more = columns
    first = engine.add(values, more)
    yield
    second = engine.add(first, values)
    engine.free(first)
    yield
    third = engine.add(second, more)
    engine.free(second)
    yield
    engine.free(third)


def _interleaved(engine: Engine, columns: list[int]) -> Iterator[None]:
    """Made on one stream, used and freed on the next one, round the four of them."""
    values, more = columns
    streams = [engine.on(stream) for stream in range(1, 4)]
    current, column = engine, engine.add(values, more)
    for follower in streams:
        current.hand_over(follower, column)
        result = follower.add(column, column)
        yield
        follower.free(column)
        current, column = follower, result
        yield
    current.hand_over(engine, column)
    engine.free(column)
    yield


TEMPORARIES = 6
"""Additions of the pipeline, of which all but the last make a column that is used once."""


def _unfused(engine: Engine, columns: list[int]) -> Iterator[None]:
    values, keys = columns[0], columns[-1]
    result = engine.add(values, columns[1])
    for _ in range(TEMPORARIES - 1):
        longer = engine.add(result, values)
        engine.free(result)
        result = longer
        yield
    yield from _rest_of_pipeline(engine, result, keys)


def _fused(engine: Engine, columns: list[int]) -> Iterator[None]:
    values, keys = columns[0], columns[-1]
    result = engine.fused([values] * TEMPORARIES + [columns[1]])
    yield
    yield from _rest_of_pipeline(engine, result, keys)


def _rest_of_pipeline(engine: Engine, result: int, keys: int) -> Iterator[None]:
    kept = engine.filter(result, keys)
    yield
    groups = engine.group_by(keys, result)
    yield
    engine.free(result, kept, groups)


STREAMS = 4


def _by_device(engine: Engine, columns: list[int]) -> Iterator[None]:
    """The host waits for the card after each operation."""
    yield from _joined_streams(engine, columns, after_each=True, by_events=False)


def _by_stream(engine: Engine, columns: list[int]) -> Iterator[None]:
    """The host waits for each stream when all its work is launched."""
    yield from _joined_streams(engine, columns, after_each=False, by_events=False)


def _by_events(engine: Engine, columns: list[int]) -> Iterator[None]:
    """The first stream waits for the others on the card, and the host for an event at the end."""
    yield from _joined_streams(engine, columns, after_each=False, by_events=True)


def _joined_streams(
    engine: Engine, columns: list[int], *, after_each: bool, by_events: bool
) -> Iterator[None]:
    """On each of four streams a sum is sorted; the first stream adds up what came out."""
    streams = [engine, *(engine.on(stream) for stream in range(1, STREAMS))]

    def done() -> None:
        if after_each:
            engine.finish_all()

    results = []
    for stream in streams:
        total = stream.add(columns[0], columns[1])
        done()
        ranked = stream.sort(total)
        done()
        results.append(ranked)
        stream.free(total)
        yield
    for stream, ranked in zip(streams[1:], results[1:], strict=True):
        if by_events:
            stream.hand_over(engine, ranked)
        elif not after_each:
            stream.finish()
    total = engine.fused(results)
    engine.free(*results, total)
    yield
    if by_events:
        engine.finish_event()
    elif after_each:
        engine.finish_all()
    else:
        engine.finish()


MUTEX = "mutex"
SIMPLE = Workload("simple", "simple operations", 4, (MEGA,), 40, "vvk", _simple, ("", MUTEX), True)
COMPLEX = Workload(
    "complex", "complex operations", 4, (MEGA,), 15, "vku", _complex, ("", MUTEX), True
)
EXTREME_ROWS = (100_000, 200_000, 400_000, 700_000, 1_400_000, 2_700_000, 5_200_000, 10 * MEGA)
EXTREME = Workload(
    "extreme_sizes", "100 K to 10 M rows, by stream", 8, EXTREME_ROWS, 15, "vvk", _aggregate
)
CONCURRENT = Workload("concurrent", "32 streams", 32, (200_000,), 8, "vvk", _simple)
CHURN = Workload("churn", "8 streams, 500 K rows", 8, (500_000,), 60, "vv", _churn)
INTERLEAVED = Workload(
    "interleaved", "made on one stream, freed on another", 1, (500_000,), 100, "vv", _interleaved
)
SMALL = Workload("small_frequent", "50 K rows x 200", 4, (50_000,), 200, "vv", _churn)
FUSED = Workload("fused", "a pipeline, fused", 1, (2 * MEGA,), 60, "vvk", _fused)
UNFUSED = Workload("unfused", "a pipeline, unfused", 1, (2 * MEGA,), 60, "vvk", _unfused)
BY_DEVICE = Workload("wait_device", "a wait after each op", 1, (MEGA,), 25, "vv", _by_device)
BY_STREAM = Workload("wait_stream", "a wait a stream", 1, (MEGA,), 25, "vv", _by_stream)
BY_EVENTS = Workload("wait_events", "events", 1, (MEGA,), 25, "vv", _by_events)

PREDICTABLE = (SIMPLE, COMPLEX)
DYNAMIC = (EXTREME, CONCURRENT, CHURN, INTERLEAVED, SMALL)
LARGER_MATTERS = (UNFUSED, FUSED, BY_DEVICE, BY_STREAM, BY_EVENTS)
WORKLOADS = {each.name: each for each in (*PREDICTABLE, *DYNAMIC, *LARGER_MATTERS)}
