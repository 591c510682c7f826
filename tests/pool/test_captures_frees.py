"""Frees inside captures, beside them and of what they made: whose the block is, and when."""

from __future__ import annotations

import pytest

from vramkit import Pool
from vramkit.driver import Device, Simulator, Stream

from .graphs import Graphs
from .support import MIB, Foreign, all_ended, captures, eventually, take_all

SIZE = 4 * MIB
SECOND = 10**9


def one_left(pool: Pool) -> bool:
    """Of two captures; the driver tells of the end of a graph on a thread of its own."""
    return eventually(lambda: not pool.step() and captures(pool) == 1)


# Without a stream, of a stream that others made


@pytest.mark.sim_only
@pytest.mark.parametrize("size", [4096, MIB, SIZE])
@pytest.mark.parametrize("graph_first", [False, True])
def test_without_its_raw_stream_a_graphs_block_waits_for_the_card(
    pool: Pool,
    device: Device,
    sim: Simulator,
    graphs: Graphs,
    streams: list[Stream],
    size: int,
    graph_first: bool,
) -> None:
    """The handle may be dead: nobody may ask it, nor whether the capture goes on."""
    raw = Foreign(streams[0])
    with graphs.capture(streams[0]) as graph:
        address = pool.malloc(size, raw)
        device.fill(address, 1, size, stream=streams[0])
        sim.reset_call_counts()
        pool.free(address)
        assert not {call for call in sim.call_counts() if call.startswith("cuStream")}
        assert pool.stats().current_usage == 0
        others = [pool.malloc(size, raw) for _ in range(20)]
        assert address not in others
        for other in others:
            pool.free(other, stream=raw)
    graph.launch(streams[0])
    device.synchronize()
    if graph_first:
        graph.close()
        assert all_ended(pool)
    pool.step()
    pool.trim()
    assert address not in take_all(pool, size, streams)
    device.synchronize()
    sim.reset_call_counts()
    pool.release_all()
    assert sim.call_counts()["cuMemFree_v2"] == 1
    if not graph_first:
        assert address not in take_all(pool, size, streams)  # the card is done, the graph is not
        graph.launch(streams[0])
        device.synchronize()
        graph.close()
        assert all_ended(pool)
        pool.release_all()
    assert pool.stats().reserved == 0


# Ordinary blocks, freed inside a capture


@pytest.mark.sim_only
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_an_ordinary_block_freed_inside_a_capture_is_its_streams_when_the_graph_is_gone(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream], raw: bool, same: bool
) -> None:
    owner, capturing, other = streams
    if same:
        capturing = owner
    given = Foreign(owner) if raw else owner
    address = pool.malloc(SIZE, given)
    with graphs.capture(capturing) as graph:
        device.fill(address, 1, SIZE, stream=capturing)
        pool.free(address, stream=Foreign(capturing))
        inside = [pool.malloc(SIZE, Foreign(capturing)) for _ in range(3)]
        assert address not in inside  # nor is it the capture's
        for each in inside:
            pool.free(each, stream=Foreign(capturing))
    assert address not in take_all(pool, SIZE, streams, 4)
    device.synchronize()
    graph.drop_graph()
    graph.launch(capturing)
    device.synchronize()
    pool.step()
    assert address not in take_all(pool, SIZE, streams, 4)  # the executable lives
    pool.release_all()
    graph.close()
    assert all_ended(pool)
    device.kernels.spin(SECOND, stream=owner)
    taken = pool.malloc(SIZE, other)  # not yet: the owner has come no further than its work
    assert pool.malloc(SIZE, given) == address != taken
    for each in (address, taken):
        pool.free(each)


@pytest.mark.parametrize("first", [0, 1])
def test_an_ordinary_block_of_two_captures_waits_for_both(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream], first: int
) -> None:
    owner, *capturing = streams
    address = pool.malloc(SIZE, owner)
    made = []
    for stream in capturing:
        with graphs.capture(stream) as graph:
            device.fill(address, 1, SIZE, stream=stream)
            if stream is capturing[0]:
                pool.also_used_on(address, Foreign(stream))
            else:
                pool.free(address, stream=Foreign(stream))
        made.append(graph)
    assert captures(pool) == 2
    made[first].close()
    assert one_left(pool)
    assert address not in take_all(pool, SIZE, streams, 3)
    device.synchronize()
    made[1 - first].launch(capturing[0])
    device.synchronize()
    made[1 - first].close()
    assert all_ended(pool)
    pool.release_all()
    assert pool.stats().reserved == 0


# A graph's blocks, freed elsewhere


def test_blocks_of_a_capture_that_are_still_in_use_outlive_its_graphs(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream]
) -> None:
    with graphs.capture(streams[0]) as graph:
        address = pool.malloc(SIZE, Foreign(streams[0]))
    graph.close()
    assert all_ended(pool)
    assert pool.stats().current_usage == SIZE
    device.fill(address, 1, SIZE, stream=streams[1])
    assert address not in take_all(pool, SIZE, streams, 2)
    pool.free(address, stream=streams[1])
    device.synchronize()
    assert address in take_all(pool, SIZE, streams[2:], 8)  # nobody's by now


@pytest.mark.sim_only
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("graph_first", [False, True])
def test_a_result_of_a_graph_waits_for_the_stream_it_was_freed_on(
    pool: Pool,
    device: Device,
    graphs: Graphs,
    streams: list[Stream],
    graph_first: bool,
    raw: bool,
) -> None:
    producer, reader, other = streams
    with graphs.capture(producer) as graph:
        address = pool.malloc(SIZE, Foreign(producer))
        device.fill(address, 1, SIZE, stream=producer)
    graph.launch(producer)
    reader.wait(producer)
    device.kernels.spin(SECOND, stream=reader)
    device.fill(address, 2, SIZE, stream=reader)
    if graph_first:
        producer.synchronize()
        graph.close()
    pool.free(address, stream=Foreign(reader) if raw else reader)
    if not graph_first:
        producer.synchronize()
        graph.close()
    assert all_ended(pool)
    taken = pool.malloc(SIZE, other)
    assert taken != address
    device.fill(taken, 3, SIZE, stream=other)
    device.synchronize()
    assert pool.malloc(SIZE, other) == address
    device.fill(address, 3, SIZE, stream=other)
    for each in (address, taken):
        pool.free(each)


@pytest.mark.parametrize("raw", [False, True])
def test_a_result_of_a_graph_stays_the_graphs_when_its_reader_is_done(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream], raw: bool
) -> None:
    producer, reader, _ = streams
    with graphs.capture(producer) as graph:
        address = pool.malloc(SIZE, Foreign(producer))
        device.fill(address, 1, SIZE, stream=producer)
    graph.launch(producer)
    reader.wait(producer)
    device.fill(address, 2, SIZE, stream=reader)
    pool.free(address, stream=Foreign(reader) if raw else reader)
    device.synchronize()
    pool.step()
    assert address not in take_all(pool, SIZE, streams, 4)
    graph.launch(producer)
    device.synchronize()
    graph.close()
    assert all_ended(pool)
    assert address in take_all(pool, SIZE, streams, 8)


@pytest.mark.parametrize("forward_first", [False, True])
def test_a_block_freed_inside_another_graphs_capture_waits_for_both(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream], forward_first: bool
) -> None:
    stream = streams[0]
    with graphs.capture(stream) as forward:
        address = pool.malloc(SIZE, Foreign(stream))
        device.fill(address, 1, SIZE, stream=stream)
    with graphs.capture(stream) as backward:
        device.fill(address, 2, SIZE, stream=stream)
        pool.free(address, stream=Foreign(stream))
        other = pool.malloc(SIZE, Foreign(stream))
        assert other != address
        pool.free(other, stream=Foreign(stream))
    first, last = (forward, backward) if forward_first else (backward, forward)
    first.close()
    assert one_left(pool)
    assert address not in take_all(pool, SIZE, streams, 3)
    last.launch(stream)
    device.synchronize()
    last.close()
    assert all_ended(pool)
    assert address in take_all(pool, SIZE, streams, 8)
