"""Graph captures: what is handed out inside one is the graph's, as long as any of it is left."""

from __future__ import annotations

import pytest

from vramkit import Pool
from vramkit.driver import Device, Stream

from .graphs import RELAXED, Graphs
from .support import MIB, Foreign, all_ended, captures, take_all

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
        pool.free(address, stream=Foreign(stream))
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
            for _ in range(3):
                pool.free(address, size, Foreign(stream))
                assert pool.malloc(size, Foreign(stream)) == address
            pool.free(address, stream=Foreign(stream))


def test_a_second_capture_of_a_stream_has_an_arena_of_its_own(
    pool: Pool, graphs: Graphs, streams: list[Stream]
) -> None:
    stream = Foreign(streams[0])
    addresses = []
    for _ in range(2):
        with graphs.capture(streams[0]):
            addresses.append(pool.malloc(4096, stream))
            pool.free(addresses[-1], stream=stream)
    assert addresses[0] != addresses[1]
    assert captures(pool) == 2


def test_branches_of_a_capture_do_not_share(
    pool: Pool, graphs: Graphs, streams: list[Stream]
) -> None:
    origin, branch, _ = streams
    with graphs.capture(origin, RELAXED):
        first = pool.malloc(4096, Foreign(origin))
        pool.free(first, stream=Foreign(origin))
        branch.wait(origin)
        second = pool.malloc(4096, Foreign(branch))
        assert second != first
        pool.free(second, stream=Foreign(branch))
        assert pool.malloc(4096, Foreign(origin)) == first
        pool.free(first, stream=Foreign(origin))
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
        pool.free(address, stream=Foreign(branch))
        pool.free(other, stream=Foreign(origin))
        origin.wait(branch)


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
        pool.free(inside, stream=Foreign(stream))
        kept = pool.malloc(4 * MIB, Foreign(stream))
        device.fill(kept, 1, 4 * MIB, stream=stream)
    graph.launch(stream)
    pool.free(kept)
    graph.launch(stream)
    device.synchronize()
