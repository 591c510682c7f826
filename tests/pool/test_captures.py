"""Graph captures: what is handed out inside one is the graph's, as long as any of it is left."""

from __future__ import annotations

import pytest

from vramkit import Pool
from vramkit.driver import Device, Stream

from .graphs import RELAXED, Graphs
from .support import MIB, Foreign, all_ended, captures, eventually, take_all

SIZES = [4096, MIB, 4 * MIB, 40 * MIB]


# Whose a block is


@pytest.mark.parametrize("size", SIZES)
def test_a_block_of_a_capture_is_the_graphs_until_all_of_it_is_gone(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream], size: int
) -> None:
    stream = streams[0]
    with graphs.capture(stream) as graph:
        address = pool.malloc(size, Foreign(stream))
        device.fill(address, 1, size, stream=stream)
        pool.free(address)
        assert captures(pool) == 1
    count = 40 if size <= MIB else 4
    assert address not in take_all(pool, size, streams, count)
    graph.drop_graph()
    pool.step()
    assert address not in take_all(pool, size, streams, count)  # the executable lives
    graph.launch(stream)
    graph.drop_executable()
    device.synchronize()
    assert all_ended(pool)
    pool.release_all()
    assert pool.stats().reserved == 0


def test_the_same_stream_of_the_same_capture_has_it_again(
    pool: Pool, graphs: Graphs, streams: list[Stream]
) -> None:
    stream = streams[0]
    with graphs.capture(stream):
        for size in SIZES:
            address = pool.malloc(size, Foreign(stream))
            pool.free(address)
            assert pool.malloc(size, Foreign(stream)) == address
            pool.free(address, size, Foreign(stream))
            assert pool.malloc(size, Foreign(stream)) == address
            pool.free(address)


def test_a_second_capture_of_a_stream_has_an_arena_of_its_own(
    pool: Pool, graphs: Graphs, streams: list[Stream]
) -> None:
    stream = Foreign(streams[0])
    addresses = []
    for _ in range(2):
        with graphs.capture(streams[0]):
            addresses.append(pool.malloc(4096, stream))
            pool.free(addresses[-1])
    assert addresses[0] != addresses[1]
    assert captures(pool) == 2


def test_branches_of_a_capture_do_not_share(
    pool: Pool, graphs: Graphs, streams: list[Stream]
) -> None:
    origin, branch, _ = streams
    with graphs.capture(origin, RELAXED):
        first = pool.malloc(4096, Foreign(origin))
        pool.free(first)
        branch.wait(origin)
        second = pool.malloc(4096, Foreign(branch))
        assert second != first
        pool.free(second)
        assert pool.malloc(4096, Foreign(origin)) == first
        pool.free(first)
        origin.wait(branch)
    assert captures(pool) == 2


def test_a_block_freed_on_another_branch_is_that_branchs(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream]
) -> None:
    """Its last use is there: the branch that allocated it comes before."""
    origin, branch, _ = streams
    with graphs.capture(origin, RELAXED):
        address = pool.malloc(4 * MIB, Foreign(origin))
        device.fill(address, 1, 4 * MIB, stream=origin)
        branch.wait(origin)
        device.fill(address, 2, 4 * MIB, stream=branch)
        pool.free(address, stream=Foreign(branch))
        other = pool.malloc(4 * MIB, Foreign(origin))
        assert other != address
        assert pool.malloc(4 * MIB, Foreign(branch)) == address
        pool.free(address)
        pool.free(other)
        origin.wait(branch)


def test_an_ordinary_block_freed_inside_a_capture_becomes_the_graphs(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream]
) -> None:
    stream = streams[0]
    address = pool.malloc(4 * MIB, stream)
    with graphs.capture(stream) as graph:
        device.fill(address, 1, 4 * MIB, stream=stream)
        pool.free(address, stream=Foreign(stream))
        assert pool.malloc(4 * MIB, Foreign(stream)) == address  # the graph may have it again
        pool.free(address)
    assert address not in take_all(pool, 4 * MIB, streams, 2)
    graph.launch(stream)
    graph.close()
    device.synchronize()
    assert all_ended(pool)
    assert address in take_all(pool, 4 * MIB, streams[1:2], 8)


def test_blocks_of_a_capture_that_are_still_in_use_outlive_its_graphs(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream]
) -> None:
    with graphs.capture(streams[0]) as graph:
        address = pool.malloc(4 * MIB, Foreign(streams[0]))
    graph.close()
    assert all_ended(pool)
    assert pool.stats().current_usage == 4 * MIB
    device.fill(address, 1, 4 * MIB, stream=streams[1])
    assert address not in take_all(pool, 4 * MIB, streams, 2)
    pool.free(address, stream=streams[1])
    assert pool.malloc(4 * MIB, streams[1]) == address
    pool.free(address)


@pytest.mark.sim_only
@pytest.mark.parametrize("destroyed_first", [False, True])
def test_a_result_of_a_graph_waits_for_the_stream_it_was_freed_on(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream], destroyed_first: bool
) -> None:
    producer, reader, other = streams
    with graphs.capture(producer) as graph:
        address = pool.malloc(4 * MIB, Foreign(producer))
        device.fill(address, 1, 4 * MIB, stream=producer)
    graph.launch(producer)
    reader.wait(producer)
    device.kernels.spin(10**9, stream=reader)
    device.fill(address, 2, 4 * MIB, stream=reader)
    if destroyed_first:
        producer.synchronize()
        graph.close()
    pool.free(address, stream=reader)
    if not destroyed_first:
        producer.synchronize()
        graph.close()
    for _ in range(3):
        pool.step()
    taken = pool.malloc(4 * MIB, other)
    assert taken != address
    device.fill(taken, 3, 4 * MIB, stream=other)
    device.synchronize()
    assert all_ended(pool)
    assert address in {pool.malloc(4 * MIB, other), taken} | take_all(pool, 4 * MIB, streams, 2)
    for block in pool.layout()["blocks"]:
        if block["state"] == "live":
            pool.free(block["address"])


def test_a_block_freed_inside_another_graphs_capture_waits_for_both(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream]
) -> None:
    stream = streams[0]
    with graphs.capture(stream) as forward:
        address = pool.malloc(4 * MIB, Foreign(stream))
        device.fill(address, 1, 4 * MIB, stream=stream)
    with graphs.capture(stream) as backward:
        device.fill(address, 2, 4 * MIB, stream=stream)
        pool.free(address, stream=Foreign(stream))
    with graphs.capture(stream) as witness:
        pool.free(pool.malloc(4096, Foreign(stream)))
    forward.close()
    witness.close()
    assert eventually(lambda: not pool.step() and captures(pool) == 2)  # told of both by now
    assert address not in take_all(pool, 4 * MIB, streams, 3)
    backward.launch(stream)
    device.synchronize()
    backward.close()
    assert all_ended(pool)
    assert address in take_all(pool, 4 * MIB, streams, 8)


@pytest.mark.sim_only
def test_a_graph_may_be_launched_after_its_blocks_were_freed(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream]
) -> None:
    """Also in memory that others used and freed before: it is the graph's now."""
    stream, other, _ = streams
    pool.configure(thread_cache_max_blocks=0)
    before = take_all(pool, 4 * MIB, [other], 4)
    device.synchronize()
    with graphs.capture(stream) as graph:
        inside = pool.malloc(4 * MIB, Foreign(stream))
        assert inside in before
        device.fill(inside, 1, 4 * MIB, stream=stream)
        pool.free(inside)
        kept = pool.malloc(4 * MIB, Foreign(stream))
        device.fill(kept, 1, 4 * MIB, stream=stream)
    graph.launch(stream)
    pool.free(kept)
    graph.launch(stream)
    device.synchronize()
