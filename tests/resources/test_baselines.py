"""How the two baselines place blocks and keep order."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vramkit.driver import Device, Driver, OutOfMemoryError
from vramkit.lab.baselines import Arena, FixedPool

MIB = 1 << 20


def waits(driver: Driver) -> int:
    assert driver.sim is not None
    return driver.sim.call_counts().get("cuStreamWaitEvent", 0)


def test_a_fixed_pool_fits_best_and_joins_neighbours(device: Device) -> None:
    with FixedPool(8 * MIB, device=device) as pool, device.stream() as stream:
        blocks = [pool.malloc(size * MIB, stream) for size in (2, 1, 1, 1, 2, 1)]
        assert blocks == [blocks[0] + offset * MIB for offset in (0, 2, 3, 4, 5, 7)]
        with pytest.raises(OutOfMemoryError, match="0 are free, the largest hole has 0"):
            pool.malloc(1, stream)
        pool.free(blocks[0])
        pool.free(blocks[2])
        assert pool.malloc(MIB, stream) == blocks[2]  # the smaller hole, though the later one
        pool.free(blocks[1])
        assert pool.malloc(3 * MIB, stream) == blocks[0]  # two neighbours, joined
        for address in (blocks[0], *blocks[2:]):
            pool.free(address)
        assert pool.malloc(8 * MIB, stream) == blocks[0]
        pool.free(blocks[0])
        assert pool.free_bytes == pool.reserved_bytes == 8 * MIB


@pytest.mark.sim_only
def test_a_fixed_pool_waits_only_for_what_others_freed(driver: Driver, device: Device) -> None:
    assert driver.sim is not None
    with FixedPool(8 * MIB, device=device) as pool:
        streams = [device.stream() for _ in range(3)]
        blocks = [pool.malloc(4 * MIB, stream) for stream in streams[:2]]
        for stream, address in zip(streams, blocks, strict=False):
            device.kernels.spin(1_000_000, stream=stream)
            device.fill(address, 1, 4 * MIB, stream=stream)
            pool.free(address)
        driver.sim.reset_call_counts()
        assert pool.malloc(4 * MIB, streams[0]) == blocks[0]
        assert waits(driver) == 0
        assert pool.malloc(4 * MIB, streams[2]) == blocks[1]
        assert waits(driver) == 1
        for address in blocks:
            pool.free(address)
        whole = pool.malloc(8 * MIB, streams[1])  # joined out of what two others freed
        assert waits(driver) == 3
        device.fill(whole, 2, 8 * MIB, stream=streams[1])
        pool.free(whole)
        for stream in streams:
            stream.close()


@pytest.mark.sim_only
def test_what_a_stream_took_over_is_ordered_for_a_third_one_too(
    driver: Driver, device: Device
) -> None:
    with FixedPool(8 * MIB, device=device) as pool:
        first, second, third = (device.stream() for _ in range(3))
        small, large = pool.malloc(2 * MIB, second), pool.malloc(4 * MIB, first)
        pool.free(small)
        device.kernels.spin(1_000_000, stream=first)
        device.fill(large, 1, 4 * MIB, stream=first)
        pool.free(large)
        taken = pool.malloc(5 * MIB, second)  # second waits for first, and joins all there is
        rest = pool.malloc(3 * MIB, third)  # of which a part was first's
        assert (taken, rest) == (small, small + 5 * MIB)
        device.fill(rest, 2, 3 * MIB, stream=third)
        pool.free(taken)
        pool.free(rest)
        for stream in (first, second, third):
            stream.close()


def test_an_arena_has_superblocks_for_each_stream(device: Device) -> None:
    with Arena(15 * MIB, device=device) as arena:
        assert arena.reserved_bytes == 16 * MIB  # rounded up
        with device.stream() as first, device.stream() as second:
            mine = [arena.malloc(1000, first), arena.malloc(1000, first)]
            other = arena.malloc(1000, second)
            assert mine[1] - mine[0] == 1024
            assert other - mine[0] == 4 * MIB
            large = arena.malloc(5 * MIB, first)
            assert large - mine[0] == 8 * MIB
            for address in (*mine, other, large):
                arena.free(address)
            assert arena.free_bytes == 16 * MIB


@pytest.mark.sim_only
def test_an_arena_collects_when_the_slab_is_used_up(driver: Driver, device: Device) -> None:
    assert driver.sim is not None
    with (
        Arena(16 * MIB, device=device) as arena,
        device.stream() as first,
        device.stream() as second,
    ):
        kept = arena.malloc(1000, first)
        address = arena.malloc(11 * MIB, first)
        device.kernels.spin(10**9, stream=first)
        device.fill(address, 1, 11 * MIB, stream=first)
        arena.free(address)
        with pytest.raises(OutOfMemoryError, match="have no 4 free superblocks of 4 MiB"):
            arena.malloc(13 * MIB, second)
        again = arena.malloc(12 * MIB, second)
        assert driver.sim.now() > 0.9  # the host waited
        device.fill(again, 2, 12 * MIB, stream=second)
        arena.free(again)
        arena.free(kept)


@pytest.mark.parametrize("kind", [FixedPool, Arena])
@pytest.mark.parametrize("size", [0, -1, 2**63])
def test_sizes_that_no_slab_has(
    device: Device, kind: type[FixedPool] | type[Arena], size: int
) -> None:
    with pytest.raises(ValueError, match=f"size is {size}"):
        kind(size, device=device)


@pytest.mark.parametrize("kind", [FixedPool, Arena])
def test_a_slab_that_the_card_has_not(device: Device, kind: type[FixedPool] | type[Arena]) -> None:
    with pytest.raises(OutOfMemoryError, match=f"asked for {1 << 40} bytes"):
        kind(1 << 40, device=device)


def test_the_lab_is_loaded_when_it_is_named() -> None:
    program = (
        "import sys, vramkit\n"
        "assert 'vramkit.lab' not in sys.modules and 'lab' in dir(vramkit)\n"
        "vramkit.lab.baselines.Arena, vramkit.lab.baselines.FixedPool\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
