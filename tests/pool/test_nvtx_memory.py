"""The memory of a pool with nvtx=True: one allocation of its limit, where nothing moves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vramkit import Pool
from vramkit.driver import Device, OutOfMemoryError, Simulator, Stream

from .nvtx import LIMIT, VARIABLE, Tool
from .support import KIB, MIB

PAGE = 2 * MIB


def test_the_heap_is_one_allocation_of_the_limit(
    marked: Pool, tool: Tool, streams: list[Stream]
) -> None:
    heaps = tool.heaps
    assert list(heaps.values()) == [LIMIT + PAGE]  # a page more, to begin at a page
    (start,) = heaps
    stats = marked.stats()
    assert (stats.reserved, stats.idle, stats.pieces) == (LIMIT, LIMIT, 1)
    blocks = [marked.malloc(size, streams[0]) for size in (1000, 3 * MIB, 20 * MIB)]
    assert marked.stats().reserved == LIMIT
    assert (
        LIMIT - marked.stats().idle == 23 * MIB + 16 * KIB
    )  # 16 small blocks, of which 15 are cached
    assert all(start <= address < start + LIMIT + PAGE for address in blocks)
    for address in blocks:
        marked.free(address)
    assert (marked.trim(), marked.release_all()) == (0, 0)  # nothing before the pool ends
    stats = marked.stats()
    assert (stats.reserved, stats.idle, stats.device_growths) == (LIMIT, LIMIT, 0)
    assert tool.heaps == heaps


@pytest.mark.sim_only
def test_the_card_shows_the_whole_limit_as_taken(
    tool: Tool, device: Device, sim: Simulator
) -> None:
    before = device.memory_info().free
    pool = Pool(device=device, background=False, nvtx=True, limit=LIMIT - 1)
    sim.reset_call_counts()
    for size in (1000, 20 * MIB):
        pool.free(pool.malloc(size))
        assert device.memory_info().free == before - LIMIT - PAGE
    pool.release_all()
    assert device.memory_info().free == before - LIMIT - PAGE
    assert {name for name in sim.call_counts() if name.startswith("cuMem")} == {"cuMemGetInfo_v2"}
    pool.close()
    assert device.memory_info().free == before
    assert (tool.heaps, tool.regions) == ({}, {})


def test_all_of_the_limit_can_be_had_and_no_more(
    marked: Pool, tool: Tool, streams: list[Stream]
) -> None:
    for size in (2 * MIB, 64 * MIB, LIMIT):
        blocks = [marked.malloc(size, streams[0]) for _ in range(LIMIT // size)]
        assert tool.regions == dict.fromkeys(blocks, size)
        with pytest.raises(OutOfMemoryError, match=r"is 256 MiB. Raise the limit, or free"):
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
        assert pool.stats().remapped_bytes == 0
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
    with pytest.raises(ValueError, match="nvtx needs a limit: compute-sanitizer knows"):
        Pool(device=device, nvtx=True)
    for limit in (None, LIMIT - PAGE, LIMIT + PAGE):
        with pytest.raises(ValueError, match="limit is decided when the pool is made with nvtx"):
            marked.configure(limit=limit)
    assert marked.config.limit == LIMIT
    marked.configure(limit=LIMIT, decay_ms=None)
    assert tool.calls == calls


def test_a_limit_above_the_card_is_refused_at_once(tool: Tool, device: Device) -> None:
    card = device.memory_info().total
    calls = tool.calls
    with pytest.raises(OutOfMemoryError, match=f"takes the limit of {2 * card} bytes at once"):
        Pool(device=device, nvtx=True, limit=2 * card)
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
