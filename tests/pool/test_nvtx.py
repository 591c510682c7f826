"""What a tool is told through NVTX: the heap is the pool's memory, regions the blocks in use."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from capi.support import compiler_of

from vramkit import Pool
from vramkit.driver import Device, Driver, OutOfMemoryError, Stream

from .graphs import Graphs
from .support import MIB, Foreign, all_ended, run

SOURCE = Path(__file__).parent / "programs" / "nvtx_tool.cpp"
NATIVE = Path(__file__).parents[2] / "native"
VARIABLE = "NVTX_INJECTION64_PATH"
LIMIT = 256 * MIB
PAGE = 2 * MIB
SIZES = [4, 1000, 60_000, MIB, 3 * MIB + 4, 20 * MIB]


class Range(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("address", ctypes.c_uint64)]


class Tool:
    """Our own tool, as the pool knows it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.tool_fault.restype = ctypes.c_char_p
        self._library.tool_calls.restype = ctypes.c_uint64

    def _ranges(self, which: str) -> dict[int, int]:
        room = (Range * 4096)()
        count = self._library[which](room, len(room))
        assert count <= len(room)
        return {each.address: each.size for each in room[:count]}

    @property
    def heaps(self) -> dict[int, int]:
        return self._ranges("tool_heaps")

    @property
    def regions(self) -> dict[int, int]:
        return self._ranges("tool_regions")

    @property
    def calls(self) -> int:
        count: int = self._library.tool_calls()
        return count

    @property
    def fault(self) -> str:
        text: bytes = self._library.tool_fault()
        return text.decode()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nvtx") / "tool.so"
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{NATIVE}"]
    command = [compiler_of(SOURCE), *flags, str(SOURCE), "-o", str(path)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    return path


@pytest.fixture
def tool(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tool]:
    """Loaded by the first pool that wants one. All that was said must be well said."""
    monkeypatch.setenv(VARIABLE, str(built))
    made = Tool(built)
    yield made
    assert made.fault == ""


@pytest.fixture
def marked(tool: Tool, device: Device) -> Iterator[Pool]:
    with Pool(device=device, background=False, nvtx=True, limit=LIMIT) as pool:
        yield pool
    assert (tool.heaps, tool.regions) == ({}, {})


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


def test_the_heap_is_one_allocation_of_the_limit(
    marked: Pool, tool: Tool, device: Device, streams: list[Stream]
) -> None:
    heaps = tool.heaps
    assert list(heaps.values()) == [LIMIT + PAGE]  # a page more, to begin at a page
    (start,) = heaps
    free = device.memory_info().free
    assert marked.stats().reserved == 0
    blocks = [marked.malloc(size, streams[0]) for size in (1000, 3 * MIB, 20 * MIB)]
    assert marked.stats().reserved == PAGE + 2 * PAGE + 10 * PAGE
    assert all(start <= address < start + LIMIT + PAGE for address in blocks)
    for address in blocks:
        marked.free(address)
    assert marked.release_all() == 13 * PAGE
    assert marked.stats().reserved == 0
    assert (tool.heaps, device.memory_info().free) == (heaps, free)


def test_all_of_the_limit_can_be_had_and_no_more(
    marked: Pool, tool: Tool, streams: list[Stream]
) -> None:
    for size in (2 * MIB, 64 * MIB, LIMIT):
        blocks = [marked.malloc(size, streams[0]) for _ in range(LIMIT // size)]
        assert tool.regions == dict.fromkeys(blocks, size)
        with pytest.raises(OutOfMemoryError, match=r"The limit is 256 MiB. Raise limit=, or free"):
            marked.malloc(2 * MIB, streams[0])
        for address in blocks:
            marked.free(address)
    assert marked.check_invariants() == ""


def test_a_block_over_neighbours_is_one_region(
    tool: Tool, device: Device, streams: list[Stream]
) -> None:
    with Pool(device=device, background=False, nvtx=True, limit=16 * MIB) as pool:
        blocks = sorted(pool.malloc(2 * MIB, streams[0]) for _ in range(8))
        for address in blocks[2:6]:
            pool.free(address)
        assert pool.malloc(8 * MIB - 4, streams[0]) == blocks[2]
        rest = dict.fromkeys(blocks[:2] + blocks[6:], 2 * MIB)
        assert tool.regions == rest | {blocks[2]: 8 * MIB - 4}
        for address in tool.regions:
            pool.free(address)


def test_nothing_moves(tool: Tool, device: Device, streams: list[Stream]) -> None:
    with Pool(device=device, background=False, nvtx=True, limit=16 * MIB) as pool:
        blocks = sorted(pool.malloc(2 * MIB, streams[0]) for _ in range(8))
        for address in blocks[::2]:
            pool.free(address)
        with pytest.raises(OutOfMemoryError):
            pool.malloc(4 * MIB, streams[0])
        assert pool.defragment() == 0
        again = [pool.malloc(2 * MIB, streams[0]) for _ in range(4)]
        assert sorted(again) == blocks[::2]
        assert pool.stats().moved == 0
        assert pool.check_invariants() == ""
        for address in blocks:
            pool.free(address)


def test_idle_memory_serves_with_the_hole_beside_it(
    tool: Tool, device: Device, streams: list[Stream]
) -> None:
    with Pool(device=device, background=False, nvtx=True, limit=8 * MIB) as pool:
        first, second = (pool.malloc(2 * MIB, streams[0]) for _ in range(2))
        assert second == first + 2 * MIB
        pool.free(second)
        assert pool.malloc(6 * MIB, streams[0]) == second
        assert tool.regions == {first: 2 * MIB, second: 6 * MIB}
        pool.free(first)
        pool.free(second)


def test_it_needs_a_limit_that_stays(tool: Tool, device: Device, marked: Pool) -> None:
    calls = tool.calls
    with pytest.raises(ValueError, match="nvtx=True needs limit=: compute-sanitizer knows"):
        Pool(device=device, nvtx=True)
    for limit in (None, LIMIT - PAGE, LIMIT + PAGE):
        with pytest.raises(ValueError, match="limit is decided when the pool is made with nvtx"):
            marked.configure(limit=limit)
    assert marked.config.limit == LIMIT
    marked.configure(limit=LIMIT, decay_ms=None)
    assert tool.calls == calls


def test_a_limit_above_the_card_is_refused_at_once(tool: Tool, device: Device) -> None:
    free, card = device.memory_info().free, device.memory_info().total
    calls = tool.calls
    with pytest.raises(OutOfMemoryError, match=f"takes the limit of {2 * card} bytes at once"):
        Pool(device=device, nvtx=True, limit=2 * card)
    assert (device.memory_info().free, tool.calls) == (free, calls)


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
        address = marked.malloc(3 * MIB, Foreign(streams[0]))
    if graph_first:
        graph.close()
        assert all_ended(marked)
    whole = {address: 4 * MIB}
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


def test_it_is_decided_when_the_pool_is_made(pool: Pool, marked: Pool) -> None:
    for each in (pool, marked):
        before = each.config
        with pytest.raises(ValueError, match="nvtx is decided when the pool is made"):
            each.configure(nvtx=not before.nvtx)
        assert each.config == before


@pytest.mark.sim_only
@pytest.mark.parametrize(
    "path", [None, "", "/does/not/exist.so", "libm.so.6"], ids=["none", "empty", "gone", "no tool"]
)
def test_without_a_tool_the_pool_works_as_ever(path: str | None) -> None:
    program = (
        "from vramkit import Pool\n"
        "with Pool(nvtx=True, limit=64 << 20) as pool:\n"
        "    assert pool.config.nvtx\n"
        "    for size in (1000, 3 << 20): pool.free(pool.malloc(size))\n"
    )
    kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
    given = {} if path is None else {VARIABLE: path}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=kept | given | {"VRAMKIT_DRIVER": "sim"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
