"""Table operations with a framework's kernels. NumPy stands in for CuPy, which needs a card."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab.numpy_as_cupy import Cupy, numpy
from tests.lab.support import Plain
from vramkit import Pool
from vramkit.driver import Driver
from vramkit.lab.allocators.array_engine import ArrayEngine
from vramkit.lab.allocators.engine import GROUPS, Engine
from vramkit.lab.allocators.frameworks import Work, memory_of
from vramkit.lab.allocators.install import Blocks, Seen, cupy_malloc, in_cupy, in_rmm, seen_by
from vramkit.lab.allocators.workloads import CHURN, SIMPLE, WORKLOADS
from vramkit.lab.meeting import Meter

MIB = 1 << 20


def values(engine: ArrayEngine, column: int) -> list[int]:
    found: list[int] = engine.arrays.by_number[column][0].tolist()
    return found


def test_operations_on_arrays_are_right() -> None:
    engine = ArrayEngine(Cupy())
    numbers, keys = engine.column(5000), engine.column(5000, keys=True)
    unique = engine.unique_keys(5000)
    plain, plain_keys = values(engine, numbers), values(engine, keys)
    assert sorted(values(engine, unique)) == list(range(5000)) != values(engine, unique)
    assert {plain_keys.count(key) for key in range(GROUPS)} == {5}

    assert values(engine, engine.add(numbers, keys)) == [
        a + b for a, b in zip(plain, plain_keys, strict=True)
    ]
    assert values(engine, engine.fused([numbers] * 3)) == [3 * each for each in plain]
    assert values(engine, engine.sort(numbers)) == sorted(plain)
    assert values(engine, engine.filter(numbers, keys)) == [
        number for number, key in zip(plain, plain_keys, strict=True) if key < GROUPS // 2
    ]
    sums = [0] * GROUPS
    for number, key in zip(plain, plain_keys, strict=True):
        sums[key] += number
    assert values(engine, engine.group_by(keys, numbers)) == sums
    places = values(engine, engine.join(keys, unique))
    others = values(engine, unique)
    assert [others[place] for place in places] == plain_keys


def test_a_column_goes_back_when_the_stream_that_used_it_has_come_so_far() -> None:
    engine = ArrayEngine(Cupy())
    other = engine.on(1)
    column = engine.column(10)
    engine.hand_over(other, column)
    assert other.stream.waits == [engine.stream]
    other.free(column)
    assert engine.stream.waits == [other.stream]
    own = engine.column(10)
    engine.free(own)
    assert engine.stream.waits == [other.stream]
    assert not engine.arrays.by_number


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_gives_the_same_checksum_each_time_and_leaves_no_column(name: str) -> None:
    made: list[ArrayEngine] = []

    def make() -> ArrayEngine:
        made.append(ArrayEngine(Cupy()))
        return made[-1]

    work = Work(replace(WORKLOADS[name], items=2), make, 0.002, False)
    assert work.check() == work.check() > 0
    assert not any(engine.arrays.by_number for engine in made)
    assert min(work.time()) > 0


def test_a_wrong_result_changes_the_checksum() -> None:
    class Wrong(Cupy):
        def bincount(self, keys: Any, weights: Any, minlength: int) -> Any:
            sums = numpy.bincount(keys, weights=weights, minlength=minlength)
            sums[7] += 1
            return sums

    right, wrong = (
        Work(WORKLOADS["complex"], lambda cupy=cupy: ArrayEngine(cupy), 0.002, False).check()
        for cupy in (Cupy(), Wrong())
    )
    assert right != wrong


@pytest.mark.parametrize("mutex", [True, False])
def test_the_mutex_keeps_items_of_workers_apart(mutex: bool) -> None:
    inside, most = [0], [0]
    together = threading.Barrier(SIMPLE.workers)

    def item(engine: Engine, columns: list[int]) -> Iterator[None]:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        if not mutex:
            together.wait(10)  # breaks where they are kept apart
        yield
        inside[0] -= 1

    workload = replace(SIMPLE, items=3, item=item)
    Work(workload, lambda: ArrayEngine(Cupy()), 0.001, mutex).time()
    assert (most[0] == 1) == mutex


def test_a_worker_that_fails_ends_the_others_and_is_heard_of() -> None:
    failed = threading.Event()

    def item(engine: Engine, columns: list[int]) -> Iterator[None]:
        if not failed.is_set():
            failed.set()
            raise MemoryError("no more")
        yield

    before = threading.active_count()
    with pytest.raises(MemoryError, match="no more"):
        Work(replace(CHURN, item=item), lambda: ArrayEngine(Cupy()), 0.001, False).time()
    assert threading.active_count() == before


@pytest.mark.sim(data=False)
def test_a_frameworks_blocks_come_from_the_allocator_and_go_back(driver: Driver) -> None:
    device = driver.device(0)
    with Pool(device=device, background=False, limit=8 * MIB) as pool, device.stream() as stream:
        blocks = Blocks(Plain(pool, native=False), device)
        address = blocks.allocate(MIB, stream.handle)
        assert pool.stats().current_usage == MIB
        with pytest.raises(MemoryError):
            blocks.allocate(64 * MIB, stream.handle)
        blocks.free(address)
        assert pool.stats().current_usage == 0


class Block:
    """As CuPy has it: freed with the last reference."""

    device_id = 0

    def __init__(self, address: int, free: Any) -> None:
        self.ptr, self._free = address, free

    def __del__(self) -> None:
        self._free(self.ptr, 0)


@pytest.mark.sim(data=False)
def test_cupy_gets_an_allocator_by_its_own_way_or_by_functions(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = driver.device(0)
    current = ["before"]

    def by_functions(malloc: Any, free: Any) -> SimpleNamespace:
        return SimpleNamespace(malloc=lambda size: Block(malloc(size, 0), free))

    with device.stream() as stream, Pool(device=device, background=False) as pool:
        cuda = SimpleNamespace(
            PythonFunctionAllocator=by_functions,
            UnownedMemory=lambda ptr, size, owner, device: SimpleNamespace(ptr=ptr, owner=owner),
            MemoryPointer=lambda memory, offset: SimpleNamespace(ptr=memory.ptr, memory=memory),
            get_current_stream=lambda: SimpleNamespace(ptr=stream.handle),
            get_allocator=lambda: current[0],
            set_allocator=lambda allocator: current.__setitem__(0, allocator),
        )
        cupy = SimpleNamespace(cuda=cuda)
        own = SimpleNamespace(resource=None, cupy_malloc="its own")
        assert cupy_malloc(cupy, own, device) == "its own"  # type: ignore[arg-type, comparison-overlap]

        monkeypatch.setattr("vramkit.lab.allocators.install.import_module", lambda name: cupy)
        seen: list[tuple[int, int]] = []

        def see(change: int) -> None:
            seen.append((change, pool.stats().current_usage))

        with in_cupy(Plain(pool, native=False), device, seen_by(cupy, see)):
            block = current[0](4096)  # type: ignore[operator]
            assert seen == [(4096, 4096)] and block.ptr > 0
            del block
            assert seen[1:] == [(-4096, 0)]
        assert current == ["before"]
        assert pool.stats().current_usage == 0


def test_rmm_gets_an_allocator_and_what_follows_an_allocation_is_called(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Callbacks:
        def __init__(self, allocate: Any, deallocate: Any) -> None:
            self.allocate, self.deallocate = allocate, deallocate

    device = driver.device(0)
    current: list[Any] = ["before"]
    mr = SimpleNamespace(
        CallbackMemoryResource=Callbacks,
        get_current_device_resource=lambda: current[0],
        set_current_device_resource=lambda resource: current.__setitem__(0, resource),
    )
    monkeypatch.setattr(
        "vramkit.lab.allocators.install.import_module", lambda name: SimpleNamespace(mr=mr)
    )
    with device.stream() as stream, Pool(device=device, background=False) as pool:
        foreign = SimpleNamespace(__cuda_stream__=lambda: (0, stream.handle))
        seen: list[tuple[int, int]] = []

        def see(change: int) -> None:
            seen.append((change, pool.stats().current_usage))

        for each in (None, see):
            with in_rmm(Plain(pool, native=False), device, each):
                address = current[0].allocate(4096, foreign)
                assert pool.stats().current_usage == 4096
                current[0].deallocate(address, 4096, foreign)
            assert current == ["before"] and pool.stats().current_usage == 0
        assert seen == [(4096, 4096), (-4096, 0)]


class Holding:
    """Says one after the other what it holds; None: it cannot tell."""

    resource = None

    def __init__(self, *held: int | None) -> None:
        self.left = list(held)

    def held(self) -> int | None:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


def read_along(monkeypatch: pytest.MonkeyPatch, *held: int | None) -> dict[str, float]:
    """Each 100 ns 20 bytes are allocated, 10 more, and 20 freed."""

    def steps(engine: Engine, columns: list[int]) -> Iterator[None]:
        for change in (20, 10, -20):
            looks[0](change)
            yield

    @contextmanager
    def inside(seen: Seen) -> Iterator[None]:
        looks.append(seen)
        yield

    looks: list[Seen] = []
    now = iter(range(1000, 10**6, 100))
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(now))
    workload = replace(CHURN, item=steps, workers=1, items=1)
    monkeypatch.setattr(Work, "time", lambda self: self.items(ArrayEngine(Cupy()), [], 1))
    work = Work(workload, lambda: ArrayEngine(Cupy()), 0.001, False)
    return memory_of(work, Holding(*held), inside)  # type: ignore[arg-type]


def test_what_an_allocator_holds_is_averaged_from_before_the_first_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 100 ns each of 50, 10, 70 and 30 bytes: what it took ahead counts from the start.
    assert read_along(monkeypatch, 50, 10, 70, 30, 30) == {
        "peak_in_use": 30,
        "peak_held": 70,
        "average_held": 40,
        "over_in_use": 70 / 30,
    }


def test_an_allocator_that_does_not_tell_what_it_holds_has_no_such_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert read_along(monkeypatch, None) == {"peak_in_use": 30}


def test_a_block_that_goes_while_memory_is_read_is_noted() -> None:
    """As one that the garbage collector frees just then."""
    going = [-30]

    def held() -> int:
        if going:
            meter.note(0.0, going.pop())
        return 50

    meter = Meter(held)

    def read() -> None:
        meter.note(0.0, 40)
        meter.note(0.0, 10)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive() and meter.peak_in_use == 40
