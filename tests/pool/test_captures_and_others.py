"""Captures that come to nothing, and who works beside a capture or its graph."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from soak import rounds

from vramkit import Pool
from vramkit.driver import Device, DriverError, OutOfMemoryError, Simulator, Stream

from .graphs import INVALIDATED, RELAXED, Graphs
from .support import MIB, Foreign, all_ended, captures, run

# Captures that come to nothing


@pytest.mark.parametrize("way", ["broken", "stream closed"])
def test_a_capture_that_comes_to_nothing_gives_its_memory_back(
    pool: Pool, device: Device, graphs: Graphs, way: str
) -> None:
    with device.stream() as stream:
        graphs.begin(stream, RELAXED)
        address = pool.malloc(4 * MIB, Foreign(stream))
        device.fill(address, 1, 4 * MIB, stream=stream)
        pool.free(address)
        if way == "broken":
            graphs.break_capture(stream)
            assert graphs.end(stream) == INVALIDATED
    assert all_ended(pool)
    pool.release_all()
    assert pool.stats().reserved == 0


def test_a_broken_capture_is_refused_until_it_has_ended(
    pool: Pool, graphs: Graphs, streams: list[Stream]
) -> None:
    """The driver does not tell whose it is, and to ask would do further harm."""
    stream = Foreign(streams[0])
    plain = pool.malloc(4096, stream)
    graphs.begin(streams[0])
    inside = pool.malloc(4096, stream)
    graphs.break_capture(streams[0])
    before = pool.stats()
    for refused in (
        lambda: pool.malloc(4096, stream),
        lambda: pool.try_malloc(4096, stream),
        lambda: pool.free(inside, stream=stream),
        lambda: pool.free(plain, stream=stream),
        lambda: pool.also_used_on(plain, stream),
    ):
        with pytest.raises(DriverError) as error:
            refused()
        assert error.value.code == INVALIDATED
    assert pool.stats() == before
    assert graphs.end(streams[0]) == INVALIDATED
    pool.free(plain, stream=stream)
    assert pool.malloc(4096, stream) == plain
    pool.free(plain)
    pool.free(inside)
    assert all_ended(pool)


def test_a_pool_closes_beside_a_graph_that_still_holds_its_memory(
    device: Device, graphs: Graphs, streams: list[Stream]
) -> None:
    pool = Pool(device=device, background=False)
    with graphs.capture(streams[0]) as graph:
        pool.free(pool.malloc(4096, Foreign(streams[0])))
    pool.close()
    assert pool.stats().reserved > 0
    graph.close()
    del pool  # the fixture sees that nothing is left


# Others meanwhile


def test_other_threads_on_other_streams_are_served_as_ever(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream]
) -> None:
    capturing, other, _ = streams
    found: list[int] = []

    def work() -> None:
        address = pool.malloc(4 * MIB, Foreign(other))
        device.fill(address, 1, 4 * MIB, stream=other)
        pool.free(address)
        again = pool.malloc(4 * MIB, other)
        found.extend([address, again])
        pool.free(again)

    with graphs.capture(capturing) as graph:
        inside = pool.malloc(4 * MIB, Foreign(capturing))
        run(work)
        assert captures(pool) == 1
        pool.free(inside, stream=Foreign(capturing))
    assert graph.nodes() == 0
    assert found[0] == found[1] != inside


@pytest.mark.sim_only
def test_replays_beside_ordinary_work_are_in_order(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream]
) -> None:
    pool.configure(limit=64 * MIB, thread_cache_max_blocks=2)
    stream, *others = streams
    with graphs.capture(stream) as graph:
        for size in (4096, MIB, 4 * MIB):
            for _ in range(3):
                blocks = [pool.malloc(size, Foreign(stream)) for _ in range(2)]
                for address in blocks:
                    device.fill(address, 1, size, stream=stream)
                    pool.free(address, stream=Foreign(stream))
    for turn in range(rounds(9, 30)):  # twice each size and each kind of upkeep
        graph.launch(stream)
        for other in (*others, stream):
            size = (4096, MIB, 4 * MIB, 20 * MIB)[turn % 4]
            address = pool.malloc(size, other)
            device.fill(address, 2, size, stream=other)
            pool.free(address)
        if turn % 7 == 0:
            pool.trim()
            pool.defragment()
    device.synchronize()


@pytest.mark.sim_only
@pytest.mark.expects_reports
def test_ordinary_use_of_a_graphs_memory_is_reported(
    pool: Pool, device: Device, sim: Simulator, graphs: Graphs, streams: list[Stream]
) -> None:
    stream, other, _ = streams
    with graphs.capture(stream) as graph:
        address = pool.malloc(4 * MIB, Foreign(stream))
        device.fill(address, 1, 4 * MIB, stream=stream)
    graph.launch(stream)
    device.fill(address, 2, 4 * MIB, stream=other)  # not ordered behind the launch
    device.synchronize()
    assert [report.kind for report in sim.reports()] == ["race"]
    pool.free(address)


@pytest.mark.sim_only
def test_memory_of_a_graph_that_was_destroyed_under_way_comes_when_it_is_done(
    pool: Pool, device: Device, sim: Simulator, graphs: Graphs, streams: list[Stream]
) -> None:
    stream, other, _ = streams
    with graphs.capture(stream) as graph:
        address = pool.malloc(4 * MIB, Foreign(stream))
        device.kernels.spin(10**9, stream=stream)
        device.fill(address, 1, 4 * MIB, stream=stream)
        pool.free(address, stream=Foreign(stream))
    graph.launch(stream)
    graph.close()
    pool.step()
    taken = pool.malloc(4 * MIB, other)
    assert taken != address
    pool.free(taken)
    sim.advance(2.0)
    assert other.query()  # time is seen to have passed, and nothing is known of the first stream
    assert all_ended(pool)
    for address in [pool.malloc(4 * MIB, other) for _ in range(2)]:
        device.fill(address, 2, 4 * MIB, stream=other)
        pool.free(address)


@pytest.mark.sim_only
@pytest.mark.parametrize("where", ["inside a capture", "outside"])
def test_a_shortage_waits_for_no_card_and_says_what_that_would_bring(
    pool: Pool, sim: Simulator, graphs: Graphs, streams: list[Stream], where: str
) -> None:
    """Blocks of raw streams that were freed without them: no fence is behind their work."""
    stream, other, _ = (Foreign(each) for each in streams)
    pool.configure(limit=16 * MIB)
    plain = pool.malloc(8 * MIB, other)
    with graphs.capture(streams[1]) as graph:
        captured = pool.malloc(8 * MIB, other)
    pool.free(plain)
    pool.free(captured)
    graph.close()
    assert all_ended(pool)
    sim.reset_call_counts()
    words = r"Up to 16 MiB were freed on raw streams .*: release_all waits for the card"
    with ExitStack() as stack:
        if where == "inside a capture":
            stack.enter_context(graphs.capture(streams[0]))
        with pytest.raises(OutOfMemoryError, match=words):
            pool.malloc(4 * MIB, stream)
    assert "cuMemFree_v2" not in sim.call_counts()
    assert pool.release_all() == 16 * MIB
    assert sim.call_counts()["cuMemFree_v2"] >= 1
    pool.free(pool.malloc(16 * MIB, stream))
