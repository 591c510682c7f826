"""What a tool is told through NVTX of blocks: those in use are regions of the pool's memory."""

from __future__ import annotations

import random

import pytest

from vramkit import Pool
from vramkit.driver import Device, Driver, Stream

from .graphs import Graphs
from .nvtx import LIMIT, Tool
from .support import KIB, MIB, Foreign, all_ended, run

SIZES = [4, 1000, 60_000, MIB, 3 * MIB + 4, 20 * MIB]


def test_the_blocks_in_use_are_the_regions(marked: Pool, tool: Tool, streams: list[Stream]) -> None:
    live = {marked.malloc(size, streams[0]): size for size in SIZES}
    assert tool.regions == live
    for address in list(live):
        marked.free(address)
        del live[address]
        assert tool.regions == live
    # Again, smaller, from where they went: the same memory.
    live = {marked.malloc(size, streams[0]): size for size in SIZES}
    again = {}
    for address, size in live.items():
        marked.free(address)
        again[marked.malloc(size - 1, streams[0])] = size - 1
    assert again.keys() == live.keys()
    assert tool.regions == again
    streams[0].synchronize()
    for address in again:
        marked.free(address, stream=streams[1])
    assert tool.regions == {}


def test_a_block_that_others_use_too_is_free_when_it_is_freed(
    marked: Pool, tool: Tool, streams: list[Stream]
) -> None:
    address = marked.malloc(4096, streams[0])
    marked.also_used_on(address, streams[1])
    assert tool.regions == {address: 4096}
    marked.free(address)
    assert tool.regions == {}


@pytest.mark.parametrize("size", [1000, 3 * MIB])
def test_what_is_freed_in_a_capture_stays_in_use_while_its_graph_lives(
    marked: Pool, tool: Tool, device: Device, graphs: Graphs, streams: list[Stream], size: int
) -> None:
    stream = Foreign(streams[0])
    with graphs.capture(streams[0]) as graph:
        address = marked.malloc(size, stream)
        whole = tool.regions
        assert whole.keys() == {address}
        assert whole[address] > size - 1
        marked.free(address, stream=stream)
        assert tool.regions == whole
        assert marked.malloc(size - 1, stream) == address
        assert tool.regions == whole
        marked.free(address, stream=stream)
    device.synchronize()
    marked.trim()
    assert tool.regions == whole
    graph.close()
    assert all_ended(marked)
    assert tool.regions == {}
    assert marked.stats().idle > 0


def test_in_a_capture_the_thread_keeps_its_blocks_since_none_are_joined(
    marked: Pool, graphs: Graphs, streams: list[Stream]
) -> None:
    stream = Foreign(streams[0])
    with graphs.capture(streams[0]) as graph:
        marked.free(marked.malloc(MIB, stream), stream=stream)
        large = marked.malloc(3 * MIB, stream)
        hits = marked.stats().cache_hits
        kept = marked.malloc(MIB, stream)
        assert marked.stats().cache_hits == hits + 1
        for address in (large, kept):
            marked.free(address, stream=stream)
    graph.close()


@pytest.mark.parametrize("size", [1000, 3 * MIB])
@pytest.mark.parametrize("raw", [False, True])
def test_an_ordinary_block_freed_in_a_capture_stays_in_use_while_that_graph_lives(
    marked: Pool, tool: Tool, graphs: Graphs, streams: list[Stream], size: int, raw: bool
) -> None:
    owner = Foreign(streams[0]) if raw else streams[0]
    address = marked.malloc(size, owner)
    with graphs.capture(streams[1]) as graph:
        marked.free(address, stream=Foreign(streams[1]))
        assert tool.regions == {address: size}
    marked.step()
    marked.trim()
    assert tool.regions == {address: size}
    graph.close()
    assert all_ended(marked)
    assert tool.regions == {}
    assert marked.stats().waiting > 0  # its stream's again


@pytest.mark.parametrize("way", ["on another stream", "without a stream"])
@pytest.mark.parametrize("graph_first", [False, True])
def test_a_graphs_block_freed_elsewhere_stays_in_use_until_it_is_idle(
    marked: Pool,
    tool: Tool,
    device: Device,
    graphs: Graphs,
    streams: list[Stream],
    way: str,
    graph_first: bool,
) -> None:
    with graphs.capture(streams[0]) as graph:
        address = marked.malloc(3 * MIB + 4, Foreign(streams[0]))
    if graph_first:
        graph.close()
        assert all_ended(marked)
    whole = {address: 3 * MIB + 64 * KIB}
    assert tool.regions == whole
    device.kernels.spin(1_000_000, stream=streams[1])
    if way == "on another stream":
        marked.free(address, stream=streams[1])
    else:
        marked.free(address)
    assert tool.regions == whole
    if not graph_first:
        marked.release_all()  # the card is done, the graph is not
        assert tool.regions == whole
        graph.close()
        assert all_ended(marked)
    marked.release_all()
    assert tool.regions == {}


def test_blocks_straight_from_the_driver_are_the_drivers_to_tell(
    tool: Tool, device: Device
) -> None:
    with Pool(device=device, background=False, nvtx=True, limit=LIMIT, large="direct") as pool:
        calls = tool.calls
        pool.free(pool.malloc(4 * MIB))
        assert tool.calls == calls


def test_regions_match_live_blocks_with_threads(marked: Pool, tool: Tool, device: Device) -> None:
    kept: list[dict[int, int]] = [{} for _ in range(4)]

    def work(number: int) -> None:
        choose, live = random.Random(number), kept[number]
        with device.stream() as stream:
            for _ in range(200):
                if len(live) > 8:
                    address = choose.choice(list(live))
                    marked.free(address, live.pop(address))
                size = choose.randrange(1, 1 << choose.randrange(1, 23))
                live[marked.malloc(size, stream)] = size

    run(*(lambda number=number: work(number) for number in range(4)))
    everything = {address: size for live in kept for address, size in live.items()}
    assert tool.regions == everything
    assert marked.check_invariants() == ""
    for address in everything:
        marked.free(address)
    assert tool.regions == {}


def test_a_pool_that_goes_takes_its_marks_along(tool: Tool, device: Device) -> None:
    pool = Pool(device=device, background=False, nvtx=True, limit=LIMIT)
    pool.malloc(1000)
    pool.malloc(3 * MIB)
    assert len(tool.regions) == 2
    del pool
    assert (tool.heaps, tool.regions) == ({}, {})


@pytest.mark.sim_only
def test_a_reset_of_the_driver_takes_the_marks_along(
    tool: Tool, device: Device, driver: Driver
) -> None:
    assert driver.sim is not None
    pool = Pool(device=device, background=False, nvtx=True, limit=LIMIT)
    pool.malloc(1000)
    driver.sim.reset()
    assert (tool.heaps, tool.regions) == ({}, {})


def test_without_the_setting_nobody_is_told(pool: Pool, tool: Tool, streams: list[Stream]) -> None:
    calls = tool.calls
    for size in SIZES:
        address = pool.malloc(size, streams[0])
        pool.also_used_on(address, streams[1])
        pool.free(address)
    pool.release_all()
    assert tool.calls == calls


def test_threads_pass_a_tool_that_needs_the_interpreter(
    marked: Pool, tool: Tool, streams: list[Stream]
) -> None:
    """Nobody waits for the tool with the GIL held."""

    def work(stream: Stream) -> None:
        for _ in range(100):
            marked.free(marked.malloc(1000, stream))

    with tool.that_runs_python():
        run(*[lambda stream=stream: work(stream) for stream in streams])  # type: ignore[misc]
    assert tool.regions == {}
