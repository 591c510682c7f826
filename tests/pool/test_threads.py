"""Threads: what they cache is not lost, and none waits for another with the GIL in its hand."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from vramkit import Pool
from vramkit.driver import Device, Driver, OutOfMemoryError

from .graphs import MODES, Graphs
from .support import MIB, Foreign, eventually, run


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Python lets another thread on every few microseconds, not milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_a_thread_that_ends_gives_its_blocks_back(pool: Pool, device: Device) -> None:
    freed: list[int] = []

    def work() -> None:
        blocks = [pool.malloc(2 * MIB, stream) for _ in range(5)]
        for address in blocks:
            device.fill(address, 1, 2 * MIB, stream=stream)
            pool.free(address)
        freed.extend(blocks)

    with device.stream() as stream, device.stream() as other:
        run(work)
        assert eventually(lambda: pool.stats().cached == 0)
        assert pool.stats().waiting == 10 * MIB
        assert pool.stats().allocation_count == 5  # its counters stay
        device.synchronize()
        again = [pool.malloc(2 * MIB, other) for _ in range(5)]
        assert sorted(again) == sorted(freed)
        for address in again:
            device.fill(address, 2, 2 * MIB, stream=other)
            pool.free(address)


def test_short_of_memory_idle_threads_give_up_what_they_cache(pool: Pool, device: Device) -> None:
    pool.configure(limit=8 * MIB)
    cached, finish = threading.Event(), threading.Event()

    def hoard() -> None:
        with device.stream() as stream:
            blocks = [pool.malloc(MIB, stream) for _ in range(8)]
            for address in blocks:
                pool.free(address)
            cached.set()
            finish.wait(30)

    def need() -> None:
        try:
            assert cached.wait(30)
            assert pool.stats().cached == 8 * MIB
            pool.free(pool.malloc(8 * MIB))
        finally:
            finish.set()

    run(hoard, need)


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.sim(data=False)  # order is checked without it
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("limit", [24 * MIB, None])
def test_threads_on_streams_in_random_order(
    device: Device, limit: int | None, background: bool, raw: bool
) -> None:
    """Blocks made, handed on and freed by six threads on three streams, short of memory or not."""
    pool = Pool(
        device=device,
        limit=limit,
        background=background,
        thread_cache_max_blocks=4,
        global_cache_max_blocks=8,
        batch_alloc_count=3,
        decay_ms=1,
        defrag_interval_ms=1,
        defrag_threshold=0.0,
    )
    streams = [device.stream() for _ in range(3)]
    lock = threading.Lock()
    shared: list[tuple[int, int]] = []

    def work(seed: int) -> Callable[[], None]:
        chance = random.Random(seed)

        def body() -> None:
            live: list[tuple[int, int]] = []
            for _ in range(500):
                stream = chance.choice(streams)
                given = Foreign(stream) if raw and chance.random() < 0.5 else stream
                size = chance.choice([1000, 50_000, MIB, 3 * MIB, 5 * MIB])
                address = pool.try_malloc(size, given) if chance.random() < 0.5 else None
                if address is None:
                    try:
                        address = pool.malloc(size, given)
                    except OutOfMemoryError:
                        assert limit is not None
                if address is not None:
                    device.fill(address, 1, size, stream=stream)
                    live.append((address, size))
                with lock:
                    if live and chance.random() < 0.3:
                        shared.append(live.pop())
                    if shared and chance.random() < 0.3:
                        live.append(shared.pop(0))
                while len(live) > chance.choice([0, 3, 6]):
                    pool.free(*live.pop(chance.randrange(len(live))))
            for address, size in live:
                pool.free(address, size)

        return body

    def maintain() -> None:
        chance = random.Random(99)
        for _ in range(200):
            chance.choice([pool.trim, pool.defragment, pool.step, pool.stats, pool._layout])()

    run(maintain, *(work(seed) for seed in range(6)))
    for address, size in shared:
        pool.free(address, size)
    assert pool.stats().current_usage == 0
    if not background:  # what it checks must stand still
        assert pool.check_invariants() == ""
    pool.close()
    assert pool.stats().reserved == 0
    for stream in streams:
        stream.close()


@pytest.mark.sim_only
@pytest.mark.usefixtures("eager_threads")
@pytest.mark.sim(data=False)
def test_threads_that_capture_beside_threads_that_do_not(pool: Pool, driver: Driver) -> None:
    device = driver.device()
    pool.configure(limit=96 * MIB, thread_cache_max_blocks=4, decay_ms=1)

    def capture(seed: int) -> Callable[[], None]:
        def body() -> None:
            chance, graphs = random.Random(seed), Graphs(driver)
            with device.stream() as stream:
                for _ in range(10):
                    with graphs.capture(stream, chance.choice(list(MODES.values()))) as graph:
                        for _ in range(5):
                            size = chance.choice([1000, MIB, 3 * MIB])
                            address = pool.malloc(size, Foreign(stream))
                            device.fill(address, 1, size, stream=stream)
                            pool.free(address, stream=Foreign(stream))
                    assert graph.nodes() == 5
                    graph.launch(stream)
                    graph.close()  # under way: a wait here would break the other thread's capture

        return body

    def work(seed: int) -> Callable[[], None]:
        def body() -> None:
            chance = random.Random(seed)
            with device.stream() as stream:
                for _ in range(150):
                    size = chance.choice([1000, MIB, 3 * MIB, 8 * MIB])
                    address = pool.malloc(size, stream)
                    device.fill(address, 2, size, stream=stream)
                    pool.free(address)
                    if chance.random() < 0.1:
                        chance.choice([pool.trim, pool.defragment, pool.step])()

        return body

    run(capture(0), capture(1), work(2), work(3))
    assert pool.stats().current_usage == 0
    device.synchronize()
    assert eventually(lambda: not pool.step() and pool.stats().captures == 0)


@pytest.mark.sim_only
@pytest.mark.sim(clock="wall")
@pytest.mark.parametrize("call", ["stats", "reset_stats", "configure", "malloc", "free"])
def test_who_waits_for_the_gpu_keeps_nobody_out_of_the_pool(
    pool: Pool, device: Device, call: str
) -> None:
    """One thread waits for work that ends only when another one has got through the pool."""
    sim = device.driver.sim
    assert sim is not None
    with device.stream() as stream, device.stream() as other:
        spare = pool.malloc(100, stream)
        calls: dict[str, Callable[[], object]] = {
            "stats": pool.stats,
            "reset_stats": pool.reset_stats,
            "configure": lambda: pool.configure(limit=None),
            "malloc": lambda: pool.free(pool.malloc(100, other)),
            "free": lambda: pool.free(spare),  # of a stream that is new to the thread
        }
        address = pool.malloc(4 * MIB, stream)
        through = threading.Event()

        def held() -> None:
            through.wait()

        stream.host_function(held)
        pool.free(address)

        def wait() -> None:
            pool.release_all()
            assert through.is_set()

        def come_in() -> None:
            assert eventually(lambda: "cuEventSynchronize" in sim.call_counts())
            calls[call]()
            through.set()

        run(wait, come_in)
        if call != "free":
            pool.free(spare)
