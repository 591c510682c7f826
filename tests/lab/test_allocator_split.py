"""Where the time goes with a framework's kernels. NumPy stands in for CuPy, which needs a card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab.allocator_reports import around, made
from tests.lab.numpy_as_cupy import Cupy, Stream, numpy
from vramkit.driver import Driver
from vramkit.lab.allocators import ALLOCATORS
from vramkit.lab.allocators.array_split import Split, covered
from vramkit.lab.allocators.claims import CLAIMS
from vramkit.lab.allocators.engine import Engine
from vramkit.lab.allocators.frameworks import Work, measure_framework
from vramkit.lab.allocators.stopwatch import Stopwatch
from vramkit.lab.allocators.workloads import CHURN, WORKLOADS
from vramkit.lab.experiment import Lab
from vramkit.lab.subjects import SUBJECTS

MALLOC, FREE, LAUNCH, SORT, BINCOUNT, OWN = 7, 3, 10, 100, 50, 20
"""Nanoseconds of the host, but for the two kernels."""


class Card:
    """The time of the host, and of the streams of a card that work beside it."""

    def __init__(self) -> None:
        self.now = 1000
        self.current: TimedStream


class TimedStream(Stream):
    card: Card

    def __init__(self, non_blocking: bool = False) -> None:
        super().__init__(non_blocking)
        self.done = 0

    def __enter__(self) -> TimedStream:
        self.card.current = self
        return self

    def record(self) -> Any:
        return SimpleNamespace(at=max(self.done, self.card.now))

    def synchronize(self) -> None:
        self.card.now = max(self.card.now, self.done)

    def launch(self, nanoseconds: int) -> None:
        self.card.now += LAUNCH
        self.done = max(self.done, self.card.now) + nanoseconds


class Pointer:
    """A block of the allocator below."""

    ptr, device_id = 4096, 0

    def __init__(self, card: Card) -> None:
        self.card = card
        card.now += MALLOC

    def __del__(self) -> None:
        self.card.now += FREE


class Column(numpy.ndarray):  # type: ignore[misc, name-defined]
    memory: Any = None


class TimedCupy(Cupy):
    """Sorts and counts take time, and memory from the allocator of arrays."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card
        self.malloc: Any = lambda size: Pointer(card)
        self.cuda.Stream = type("StreamOfCard", (TimedStream,), {"card": card})
        self.cuda.get_elapsed_time = lambda begin, end: (end.at - begin.at) / 1e6
        self.cuda.UnownedMemory = lambda ptr, size, owner, device: SimpleNamespace(owner=owner)
        self.cuda.MemoryPointer = lambda memory, offset: SimpleNamespace(memory=memory)

    def _column(self, array: Any) -> Any:
        column = array.view(Column)
        column.memory = self.malloc(array.nbytes)
        return column

    def sort(self, array: Any) -> Any:
        column = self._column(numpy.sort(array))
        self.card.current.launch(SORT)
        return column

    def bincount(self, keys: Any, weights: Any, minlength: int) -> Any:
        column = self._column(numpy.bincount(keys, weights=weights, minlength=minlength))
        self.card.current.launch(BINCOUNT)
        self.card.current.synchronize()
        return column


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()
    monkeypatch.setattr("time.perf_counter_ns", lambda: card.now)
    return card


def test_each_moment_of_a_thread_belongs_to_one_part(card: Card) -> None:
    watch = Stopwatch()
    card.now += 1
    with watch.during("wait"):
        card.now += 10
        with watch.during("allocation"):
            card.now += 100
        card.now += 1000
    card.now += 10_000
    watch.switch("own")
    assert watch.spent == {"own": 10_001, "allocation": 100, "launch": 0, "wait": 1010}


def test_the_time_of_a_worker_is_split_into_its_parts(card: Card) -> None:
    cupy = TimedCupy(card)
    split = Split(cupy)
    cupy.malloc = split.clocked(cupy.malloc)

    def item(engine: Engine, columns: list[int]) -> Iterator[None]:
        values, keys = columns
        ranked = engine.sort(values)
        yield
        card.now += OWN
        groups = engine.group_by(keys, ranked)
        yield
        engine.free(ranked, groups)

    workload = replace(CHURN, items=2, workers=1, columns="vk", item=item)
    found = split.measure(Work(workload, split.engine, 0.001, False))
    # The host goes on after it has launched the sort, and then waits for the counts.
    an_item = MALLOC + LAUNCH + SORT + BINCOUNT + 2 * FREE
    nanoseconds = {name: round(value * 1e6) for name, value in found.items()}
    wait = an_item - 2 * MALLOC - LAUNCH - OWN - 2 * FREE
    assert nanoseconds == {
        "split_time": 2 * an_item,
        "allocation": 2 * (2 * MALLOC + 2 * FREE),
        "launch": 2 * LAUNCH,
        "wait": 2 * wait,
        # The second item's sort is under way when the host has freed the first one's columns.
        # The card waits for the host at both ends of an item.
        "kernels": 2 * (MALLOC + LAUNCH + SORT + BINCOUNT + FREE),
    }


def test_operations_that_overlap_are_counted_once() -> None:
    assert covered([(0, 4), (1, 2), (3, 6), (8, 9)]) == 7
    assert covered([(5, 6), (0, 1)]) == 2
    assert covered([]) == 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_split_round_does_the_same_work(name: str) -> None:
    cupy = Cupy()
    cupy.cuda.get_elapsed_time = lambda begin, end: 0.0
    engines = []
    split = Split(cupy)

    def make() -> Any:
        engine = split.engine()
        engine.sums.wanted = True
        engines.append(engine)
        return engine

    workload = replace(WORKLOADS[name], items=2)
    found = split.measure(Work(workload, make, 0.002, False))
    assert 0 < found["launch"] + found["wait"] <= found["split_time"]
    assert not any(engine.arrays.by_number for engine in engines)
    plain = Work(workload, lambda: split.engine(), 0.002, False).check()
    assert plain > 0


@pytest.mark.sim(data=False)
def test_the_other_rounds_have_no_clocks_and_no_events(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count of events each time that the allocator changes."""
    made_events: list[None] = []
    counts: list[int] = []

    class Counted(Stream):
        def record(self) -> Counted:
            made_events.append(None)
            return self

    def set_allocator(malloc: object) -> None:
        counts.append(len(made_events))

    cupy = Cupy()
    cupy.cuda = SimpleNamespace(
        Stream=Counted,
        Device=lambda *ordinal: SimpleNamespace(use=lambda: None, synchronize=lambda: None),
        PythonFunctionAllocator=lambda malloc, free: SimpleNamespace(malloc=malloc),
        get_current_stream=lambda: SimpleNamespace(ptr=0),
        get_allocator=lambda: None,
        set_allocator=set_allocator,
        get_elapsed_time=lambda begin, end: 0.0,
    )
    for module in ("frameworks", "install"):
        monkeypatch.setattr(f"vramkit.lab.allocators.{module}.import_module", lambda name: cupy)
    lab = Lab(SimpleNamespace(sim=None), driver.device(0), 0, 0, {})  # type: ignore[arg-type]
    found = measure_framework("cupy", "simple", False, SUBJECTS["direct"], lab, 0.001)
    assert found.keys() >= {"time", "allocation", "launch", "wait", "kernels", "split_time"}
    # On and off, in each of four rounds: only the last one has events, two for each operation.
    assert counts[:-1] == [0] * 7
    workers, items, operations = 4, 1 + 40, 3
    assert counts[-1] == 1 + workers * items * operations * 2


def share_claim(engine: str, **values: float) -> str:
    rows = {("churn", engine, "rmm_pool"): {name: around(each) for name, each in values.items()}}
    report = made(ALLOCATORS, rows)
    claim = next(claim for claim in CLAIMS if claim.text == "allocation is 2 % of the time")
    return claim.judged(report).figures


def test_a_verdict_says_whose_kernels_its_time_had() -> None:
    assert "with modelled kernels" in share_claim("native", time=100.0, allocation=2.0)
    assert "with modelled kernels" in share_claim("python", time=100.0, allocation=2.0)
    real = share_claim("cupy", time=100.0, split_time=200.0, allocation=2.0)
    assert "1.0 % in the middle" in real  # of the round that had the clocks
    assert "with CuPy's kernels" in real and "modelled" not in real


def test_the_share_that_a_report_opens_with_is_that_of_real_kernels_where_there_are_some() -> None:
    of_model = {"time": around(100.0), "allocation": around(2.0)}
    of_cupy = {"time": around(100.0), "split_time": around(200.0), "allocation": around(20.0)}
    rows = {("churn", "native", "pool"): of_model}
    said = ALLOCATORS.findings(made(ALLOCATORS, rows))[0].text
    assert "2.0 % of the time" in said and "with modelled kernels" in said
    said = ALLOCATORS.findings(made(ALLOCATORS, {**rows, ("churn", "cupy", "pool"): of_cupy}))[0]
    assert "10.0 % of the time" in said.text and "with CuPy's kernels" in said.text


def test_the_table_of_parts_has_the_subjects_that_were_split() -> None:
    rows = {
        ("churn", "cupy", "pool"): {
            "time": around(100.0),
            "split_time": around(200.0),
            "allocation": around(20.0),
            "kernels": around(150.0),
        },
        ("churn", "cudf", "pool"): {"time": around(100.0)},
    }
    tables = [
        each
        for each in ALLOCATORS.blocks(made(ALLOCATORS, rows))
        if getattr(each, "title", "").startswith("Where the time goes")
    ]
    assert [each.title for each in tables] == ["Where the time goes: churn, cupy, CuPy's kernels"]  # type: ignore[union-attr]
    assert tables[0].rows[0][:4] == ["pool", "10.0 %", "", ""]  # type: ignore[union-attr]
    assert tables[0].rows[0][4].startswith("0.75")  # type: ignore[union-attr]
