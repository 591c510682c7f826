"""A capture survives whatever the pool does meanwhile, on its own thread and on others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vramkit import Pool
from vramkit.driver import Device, Stream

from .graphs import MODES, Graphs
from .support import MIB, Foreign, legacy_streams, run

Activity = Callable[["Bench"], None]
ACTIVITIES: dict[str, Activity] = {}
NEED_TIME = {"steps", "a wait on the host", "memory that moves in use"}  # of the simulated clock

WORK_NANOSECONDS = 10**8
SIZE = 4096


class Bench:
    """Two pools and streams that nobody captures; `limited` has 8 MiB, all of it used once."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pool = Pool(device=device, background=False)
        self.limited = Pool(device=device, background=False, limit=8 * MIB)
        self.stream, self.other, self.raw = (device.stream() for _ in range(3))
        self.result = device.alloc_pinned(SIZE)
        self.result.write(bytes(SIZE))
        self.closed_meanwhile: Stream | None = device.stream()
        self.device.kernels.spin(1, stream=self.stream)  # its module is loaded now
        # First, so that each of them has a piece of its own.
        blocks = [self.limited.malloc(2 * MIB, self.stream) for _ in range(3)]
        for pool in (self.pool, self.limited):
            for stream in (self.stream, self.other, self.closed_meanwhile):
                pool.free(pool.malloc(4096, stream))
        for address in blocks[::2]:
            self.limited.free(address)
        self.held = blocks[1]

    def work_on(self, address: int) -> None:
        """Long work on a stream that the pool knows by its handle alone. Its end tells the host."""
        self.device.kernels.spin(WORK_NANOSECONDS, stream=self.raw)
        self.device.fill(address, 7, SIZE, stream=self.raw)
        self.device.copy(self.result, address, SIZE, stream=self.raw)

    def is_done(self) -> bool:
        return bytes(self.result.read()) == b"\x07" * SIZE

    def close(self) -> None:
        self.limited.free(self.held)
        for thing in (self.pool, self.limited, self.stream, self.other, self.raw, self.result):
            thing.close()
        if self.closed_meanwhile is not None:
            self.closed_meanwhile.close()


def activity(body: Activity) -> Activity:
    ACTIVITIES[body.__name__.replace("_", " ")] = body
    return body


@activity
def growth(bench: Bench) -> None:
    for size in (MIB, 5 * MIB, 100 * MIB):
        bench.pool.free(bench.pool.malloc(size, bench.stream))


@activity
def first_use_of_streams(bench: Bench) -> None:
    with bench.device.stream() as stream:
        bench.pool.free(bench.pool.malloc(4096, Foreign(stream)))


@activity
def spills(bench: Bench) -> None:
    bench.pool.configure(thread_cache_max_blocks=0, global_cache_max_blocks=1)
    for stream in (bench.stream, Foreign(bench.other)):
        blocks = [bench.pool.malloc(4096, stream) for _ in range(5)]
        for address in blocks:
            bench.pool.free(address)


@activity
def the_block_of_another_stream(bench: Bench) -> None:
    bench.pool.configure(thread_cache_max_blocks=0)
    bench.pool.free(bench.pool.malloc(2 * MIB, bench.stream))
    bench.pool.free(bench.pool.malloc(2 * MIB, bench.other))


@activity
def trim_and_release(bench: Bench) -> None:
    bench.pool.free(bench.pool.malloc(20 * MIB, bench.stream))
    bench.pool.trim()
    bench.pool.release_all()


@activity
def defragment(bench: Bench) -> None:
    assert bench.limited.defragment() > 0


@activity
def steps(bench: Bench) -> None:
    bench.pool.configure(decay_ms=1, defrag_interval_ms=1)
    assert bench.device.driver.sim is not None
    for _ in range(4):
        bench.device.driver.sim.advance(0.002)
        bench.pool.step()


def wait_on_the_gpu(bench: Bench, stream: Stream | None) -> None:
    bench.limited.configure(limit=6 * MIB)
    bench.device.kernels.spin(10**8, stream=bench.stream)
    blocks = [bench.limited.malloc(2 * MIB, bench.stream) for _ in range(2)]
    for address in blocks:
        bench.limited.free(address)
    bench.limited.free(bench.limited.malloc(2 * MIB, stream))


@activity
def a_wait_on_the_gpu(bench: Bench) -> None:
    wait_on_the_gpu(bench, bench.other)


@activity
def a_wait_of_the_legacy_stream_on_the_gpu(bench: Bench) -> None:
    wait_on_the_gpu(bench, None)


def seconds_of_a_large_request(bench: Bench, stream: Stream) -> float:
    """Served by two blocks of the bench's stream, which works for a tenth of a second."""
    blocks = [bench.limited.malloc(2 * MIB, bench.stream) for _ in range(2)]
    bench.device.kernels.spin(10**8, stream=bench.stream)
    for address in blocks:
        bench.limited.free(address)
    sim = bench.device.driver.sim
    assert sim is not None
    before = sim.now()
    bench.limited.free(bench.limited.malloc(4 * MIB, stream))
    return sim.now() - before


@activity
def a_wait_on_the_host(bench: Bench) -> None:
    with bench.device.stream() as other:
        assert seconds_of_a_large_request(bench, other) > 0.09


@activity
def memory_that_moves_in_use(bench: Bench) -> None:
    assert seconds_of_a_large_request(bench, bench.stream) < 0.01


@activity
def a_request_that_fails(bench: Bench) -> None:
    assert bench.limited.try_malloc(8 * MIB, bench.stream) is None


@activity
def a_stream_that_closes(bench: Bench) -> None:
    assert bench.closed_meanwhile is not None
    bench.closed_meanwhile.close()
    bench.closed_meanwhile = None


@activity
def pools_that_open_and_close(bench: Bench) -> None:
    with Pool(device=bench.device) as made:  # with its thread
        made.free(made.malloc(4 * MIB, bench.stream))


@activity
def the_legacy_stream(bench: Bench) -> None:
    """By all its names, with its first use, a spill and a request for what it has freed."""
    with Pool(device=bench.device, background=False, thread_cache_max_blocks=0) as made:
        for stream in legacy_streams(bench.device):
            made.free(made.malloc(SIZE, stream), stream=stream)
            made.free(made.malloc(2 * MIB, stream), stream=stream)
        made.free(made.malloc(2 * MIB, bench.stream))
        made.trim()


@activity
def release_of_blocks_that_raw_streams_are_at(bench: Bench) -> None:
    address = bench.pool.malloc(SIZE, Foreign(bench.raw))
    bench.work_on(address)
    bench.pool.free(address)
    assert bench.pool.trim() == 0  # no fence is behind the work
    assert bench.pool.release_all() > 0
    assert bench.is_done()
    assert bench.pool.stats().reserved == 0


@activity
def release_of_blocks_lent_to_raw_streams(bench: Bench) -> None:
    address = bench.pool.malloc(SIZE, bench.stream)
    bench.raw.wait(bench.stream)
    bench.pool.also_used_on(address, Foreign(bench.raw))
    bench.work_on(address)
    bench.pool.free(address)
    assert bench.pool.release_all() > 0
    assert bench.is_done()
    assert bench.pool.stats().reserved == 0


@activity
def the_close_of_a_pool_that_raw_streams_are_at(bench: Bench) -> None:
    with Pool(device=bench.device, background=False) as made:
        address = made.malloc(SIZE, Foreign(bench.raw))
        bench.work_on(address)
        made.free(address)
    assert bench.is_done()


@activity
def the_end_of_a_pool_that_raw_streams_are_at(bench: Bench) -> None:
    made = Pool(device=bench.device, background=False)
    freed, live = (made.malloc(SIZE, Foreign(bench.raw)) for _ in range(2))
    bench.work_on(freed)
    bench.device.fill(live, 1, SIZE, stream=bench.raw)
    made.free(freed)
    del made
    assert bench.is_done()


@activity
def large_blocks_straight_from_the_driver(bench: Bench) -> None:
    bench.pool.configure(large="direct")
    bench.pool.free(bench.pool.malloc(4 * MIB, bench.stream))


@activity
def figures(bench: Bench) -> None:
    bench.pool.stats()
    bench.pool.snapshot()
    bench.pool.preallocate(4096, 100)


@pytest.mark.parametrize("whose", ["another thread", "its own thread"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["known", "known and blocking", "unknown", "unknown and blocking"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.sim_only] if name in NEED_TIME else [])
        for name in ACTIVITIES
    ],
)
def test_a_capture_survives(
    device: Device, graphs: Graphs, name: str, mode: str, whose: str, kind: str
) -> None:
    """Known: the pool may ask the stream whether it is captured, and does."""
    bench = Bench(device)
    with (
        device.stream(blocking=kind.endswith("blocking")) as capturing,
        device.alloc(SIZE) as memory,
    ):
        if kind.startswith("known"):
            bench.pool.free(bench.pool.malloc(SIZE, capturing))
        with graphs.capture(capturing, MODES[mode]) as graph:
            device.fill(memory, 1, stream=capturing)
            if whose == "another thread":
                run(lambda: ACTIVITIES[name](bench))
            else:
                ACTIVITIES[name](bench)
            device.fill(memory, 2, stream=capturing)
        assert graph.nodes() == 2  # and nothing of ours is in it
        graph.launch(capturing)
        capturing.synchronize()
    bench.close()
