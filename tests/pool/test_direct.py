"""large="direct": blocks above 1 MiB straight from the driver and back."""

from __future__ import annotations

import pytest

from vramkit import Pool
from vramkit.driver import Device, OutOfMemoryError, Simulator, Stream

from .graphs import Graphs
from .support import MIB, calls, captures, eventually


@pytest.fixture
def direct(pool: Pool) -> Pool:
    pool.configure(large="direct")
    return pool


@pytest.mark.sim_only
@pytest.mark.parametrize("size", [MIB + 1, 2 * MIB, 100 * MIB])
def test_a_direct_block_is_one_call_each_way(direct: Pool, sim: Simulator, size: int) -> None:
    direct.free(direct.malloc(256))
    calls(sim)
    address = direct.malloc(size)
    assert calls(sim) == {"cuMemAlloc_v2": 1}
    direct.free(address, size)
    assert calls(sim) == {"cuMemFree_v2": 1}
    direct.free(direct.malloc(MIB))  # 1 MiB is pooled
    assert "cuMemAlloc_v2" not in calls(sim)


def test_direct_blocks_are_in_the_statistics(direct: Pool) -> None:
    address = direct.malloc(5_000_000)
    stats = direct.stats()
    assert (stats.direct_hits, stats.cache_misses, stats.large_blocks) == (1, 1, 1)
    assert (stats.current_usage, stats.reserved) == (5_000_000, 5_000_000)
    direct.free(address)
    stats = direct.stats()
    assert (stats.current_usage, stats.reserved, stats.free_count) == (0, 0, 1)
    assert stats.peak_reserved == 5_000_000
    assert 5_000_000 - 65_536 <= stats.peak_usage <= 5_000_000


def test_bad_frees_of_direct_blocks(direct: Pool, device: Device) -> None:
    address = direct.malloc(4 * MIB)
    with pytest.raises(ValueError, match=f"the block has {4 * MIB} bytes, not {3 * MIB}"):
        direct.free(address, 3 * MIB)
    with pytest.raises(ValueError, match="not of this pool"):
        direct.free(address + 256)
    with device.alloc(4 * MIB) as memory, pytest.raises(ValueError, match="not of this pool"):
        direct.free(memory.address)
    direct.free(address)
    with pytest.raises(ValueError, match=r"not of this pool|freed twice"):
        direct.free(address)


def test_the_limit_counts_direct_blocks(direct: Pool) -> None:
    direct.configure(limit=16 * MIB)
    address = direct.malloc(12 * MIB)
    with pytest.raises(OutOfMemoryError, match="The limit is 16 MiB"):
        direct.malloc(5 * MIB)
    blocks = [direct.malloc(MIB) for _ in range(4)]
    with pytest.raises(OutOfMemoryError):
        direct.malloc(MIB)
    for each in [address, *blocks]:
        direct.free(each)
    direct.free(direct.malloc(16 * MIB))  # what was pooled makes way


@pytest.mark.sim_only
def test_short_of_memory_a_direct_block_waits_for_what_is_under_way(
    direct: Pool, device: Device
) -> None:
    direct.configure(limit=4 * MIB)
    with device.stream() as busy, device.stream() as other:
        blocks = [direct.malloc(MIB, busy) for _ in range(4)]
        device.kernels.spin(10**9, stream=busy)
        for address in blocks:
            device.fill(address, 1, MIB, stream=busy)
            direct.free(address)
        assert direct.try_malloc(3 * MIB, other) is None
        direct.free(direct.malloc(3 * MIB, other))


@pytest.mark.parametrize("way", ["freed in the capture", "noted in the capture"])
def test_what_a_graph_uses_goes_back_when_the_graph_is_gone(
    direct: Pool, device: Device, graphs: Graphs, owner: Stream, way: str
) -> None:
    address = direct.malloc(4 * MIB, owner)
    with graphs.capture(owner) as graph:
        device.fill(address, 1, 4 * MIB, stream=owner)
        if way == "freed in the capture":
            direct.free(address, stream=owner)
        else:
            direct.also_used_on(address, owner)
    if way == "noted in the capture":
        direct.free(address)
    stats = direct.stats()
    assert (stats.current_usage, stats.waiting, stats.reserved) == (0, 4 * MIB, 4 * MIB)
    with pytest.raises(ValueError, match="not of this pool"):
        direct.free(address)
    for _ in range(2):
        graph.launch(owner)
        owner.synchronize()
        direct.release_all()
    graph.close()
    assert eventually(lambda: direct.step() or direct.stats().reserved == 0)


def test_short_of_memory_a_direct_block_has_what_was_a_graphs(
    direct: Pool, device: Device, graphs: Graphs, owner: Stream
) -> None:
    direct.configure(limit=4 * MIB)
    address = direct.malloc(4 * MIB, owner)
    with graphs.capture(owner) as graph:
        direct.free(address, stream=owner)
    assert direct.try_malloc(4 * MIB, owner) is None
    graph.close()
    assert eventually(lambda: captures(direct) == 0 or bool(direct.trim()))
    direct.free(direct.malloc(4 * MIB, owner))


def test_a_pool_that_goes_frees_what_was_a_graphs(
    device: Device, graphs: Graphs, owner: Stream
) -> None:
    with Pool(device=device, background=False, large="direct") as made:
        address = made.malloc(4 * MIB, owner)
        with graphs.capture(owner):
            made.free(address, stream=owner)
    assert made.stats().reserved == 4 * MIB
    del made  # the fixture of the driver finds what is left


def test_blocks_of_both_kinds_live_side_by_side(pool: Pool) -> None:
    pooled = pool.malloc(4 * MIB)
    pool.configure(large="direct")
    direct = pool.malloc(4 * MIB)
    pool.configure(large="pool")
    pool.free(direct)
    pool.free(pooled)
    assert pool.stats().current_usage == 0
