"""What happens with time: idle memory goes back after its decay time, and some is mapped ahead."""

from __future__ import annotations

import random
import threading

import pytest

from vramkit import Pool
from vramkit.driver import Device, Simulator, Stream

from .support import MIB, calls, run

pytestmark = pytest.mark.sim_only

DECAY = 10.0  # seconds, as it is by default


def run_maintenance(pool: Pool, sim: Simulator, seconds: float) -> None:
    """Time passes, with steps as the background thread would make them."""
    end = sim.now() + seconds
    while sim.now() < end:
        sim.advance(DECAY / 2)
        for _ in range(100):
            if not pool.step():
                break
            sim.advance(0.002)
    assert pool.check_invariants() == ""


def burst(pool: Pool, device: Device, streams: list[Stream | None], nbytes: int) -> None:
    """Allocates that much in blocks of all sizes, uses it, and frees all of it."""
    chance = random.Random(0)
    blocks = []
    while nbytes > 0:
        size = int(256 * 2 ** chance.uniform(0, 18))  # 256 bytes to 64 MiB
        stream = chance.choice(streams)
        address = pool.malloc(size, stream)
        device.fill(address, 1, size, stream=stream or device.legacy_stream)
        blocks.append(address)
        nbytes -= size
    for address in blocks:
        pool.free(address)


# Back to the driver


@pytest.mark.sim(data=False, capacity="16GiB")
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_burst_is_gone_two_decay_times_later(
    pool: Pool, device: Device, sim: Simulator, count: int
) -> None:
    streams: list[Stream | None] = [device.stream() for _ in range(count)] or [None]
    kept = [pool.malloc(size, streams[0]) for size in (256, 5000, MIB, 20 * MIB)]
    before = pool.stats().reserved
    burst(pool, device, streams, 3 << 30)
    assert pool.stats().reserved > 3 << 30
    run_maintenance(pool, sim, 2 * DECAY)
    assert pool.stats().reserved <= before + 64 * MIB
    assert pool.stats().released_bytes >= (3 << 30) - 64 * MIB
    for address in kept:
        pool.free(address)
    for stream in streams:
        if stream is not None:
            stream.close()


@pytest.mark.sim(data=False)
def test_within_half_a_decay_time_everything_stays(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    burst(pool, device, [None], 500 * MIB)
    held = pool.stats().reserved
    pool.step()
    sim.advance(0.4 * DECAY)
    pool.step()
    assert (pool.stats().released_bytes, pool.stats().reserved >= held) == (0, True)


@pytest.mark.sim(data=False)
def test_all_of_an_idle_pool_goes(pool: Pool, device: Device, sim: Simulator) -> None:
    with device.stream() as stream:
        burst(pool, device, [stream], 100 * MIB)
        run_maintenance(pool, sim, 3 * DECAY)
        assert (pool.stats().reserved, pool.stats().cached, pool.stats().waiting) == (0, 0, 0)


def test_memory_goes_back_beside_a_block_that_comes_and_goes(
    device: Device, sim: Simulator
) -> None:
    with Pool(device=device, background=False, enable_defrag=False) as pool:
        with device.stream() as gone:
            for address in [pool.malloc(2 * MIB, gone) for _ in range(100)]:
                pool.free(address)
        assert pool.stats().idle == 200 * MIB
        for _ in range(20):
            with device.stream() as gone:  # its block is idle at once, beside the others
                pool.free(pool.malloc(2 * MIB, gone))
            sim.advance(DECAY / 10)
            pool.step()
        assert pool.stats().reserved == 2 * MIB


def test_memory_in_steady_use_stays(pool: Pool, device: Device, sim: Simulator) -> None:
    with device.stream() as stream:

        def use() -> None:
            sizes = [4096] * 100 + [MIB] * 40 + [8 * MIB] * 20
            blocks = [pool.malloc(size, stream) for size in sizes]
            for address in blocks:
                pool.free(address)

        def use_for(decay_times: int) -> None:
            for _ in range(2 * decay_times):
                sim.advance(DECAY / 2)
                pool.step()
                use()

        use_for(2)  # what was mapped ahead and not needed goes
        pool.reset_stats()
        held = pool.stats().reserved
        use_for(6)
        stats = pool.stats()
        assert (stats.device_growths, stats.released_bytes, stats.reserved) == (0, 0, held)


def test_what_is_used_less_goes_in_part(pool: Pool, device: Device, sim: Simulator) -> None:
    with device.stream() as stream:

        def use(count: int) -> None:
            blocks = [pool.malloc(4 * MIB, stream) for _ in range(count)]
            for address in blocks:
                pool.free(address)

        use(30)
        for _ in range(6):
            sim.advance(DECAY / 2)
            pool.step()
            use(10)
        assert pool.stats().reserved == 10 * 4 * MIB
        assert pool.stats().device_growths == 30  # none of the ten was new


def test_blocks_under_way_do_not_go(pool: Pool, device: Device, sim: Simulator) -> None:
    with device.stream() as stream:
        address = pool.malloc(8 * MIB, stream)
        device.kernels.spin(int(6 * DECAY * 1e9), stream=stream)
        device.fill(address, 1, 8 * MIB, stream=stream)
        pool.free(address)
        for _ in range(8):
            sim.advance(DECAY / 2)
            assert pool.step() == (pool.stats().events_recorded > 0)  # it is awaited
            assert pool.stats().reserved == 8 * MIB
        stream.synchronize()
        run_maintenance(pool, sim, DECAY)
        assert pool.stats().reserved == 0


def test_caches_of_idle_threads_decay_too(pool: Pool, device: Device, sim: Simulator) -> None:
    cached, finish = threading.Event(), threading.Event()

    def hoard() -> None:
        blocks = [pool.malloc(MIB, stream) for _ in range(20)]
        for address in blocks:
            pool.free(address)
        cached.set()
        assert finish.wait(60)
        pool.free(pool.malloc(MIB, stream))  # and its cache goes on

    def look() -> None:
        try:
            assert cached.wait(60)
            assert pool.stats().cached == 20 * MIB
            run_maintenance(pool, sim, 2 * DECAY)
            assert (pool.stats().cached, pool.stats().reserved) == (0, 0)
        finally:
            finish.set()

    with device.stream() as stream:
        run(hoard, look)


def test_without_a_decay_time_nothing_goes(pool: Pool, device: Device, sim: Simulator) -> None:
    pool.configure(decay_ms=None)
    burst(pool, device, [None], 200 * MIB)
    pool.step()
    held = pool.stats().reserved
    run_maintenance(pool, sim, 10 * DECAY)
    assert (pool.stats().reserved, pool.stats().released_bytes) == (held, 0)


def test_a_new_decay_time_holds_at_once(pool: Pool, device: Device, sim: Simulator) -> None:
    pool.configure(decay_ms=None)
    pool.free(pool.malloc(50 * MIB))
    pool.step()
    pool.configure(decay_ms=100)
    for _ in range(5):
        pool.step()
        sim.advance(0.05)
    assert pool.stats().reserved == 0


# Mapped ahead


def test_a_piece_is_mapped_when_a_slab_leaves_less_than_half_of_one(
    pool: Pool, device: Device, sim: Simulator
) -> None:
    def growths_after_a_step() -> int:
        pool.step()
        return pool.stats().device_growths

    with device.stream() as stream:
        blocks = [pool.malloc(4096, stream)]  # of 2 MiB, and a piece has 4
        assert [growths_after_a_step() for _ in range(3)] == [2, 2, 2]
        assert pool.stats().reserved == 6 * MIB
        calls(sim)
        blocks.append(pool.malloc(5 * MIB, stream))
        assert growths_after_a_step() == 2  # only slabs ask for more
        blocks.append(pool.malloc(1000, stream))
        assert calls(sim) == {}
        assert [growths_after_a_step() for _ in range(3)] == [3, 3, 3]
        assert pool.stats().reserved == 10 * MIB
        for address in blocks:
            pool.free(address)


def test_nothing_is_mapped_ahead_of_large_blocks_past_the_limit_or_of_a_full_card(
    pool: Pool, device: Device
) -> None:
    def held_after_a_step() -> int:
        pool.step()
        return pool.stats().reserved

    blocks = [pool.malloc(8 * MIB)]
    assert held_after_a_step() == 8 * MIB
    pool.configure(limit=12 * MIB)
    blocks.append(pool.malloc(4096))
    assert held_after_a_step() == 10 * MIB  # a piece more would be 14
    pool.configure(limit=None)
    rest = device.alloc(device.memory_info().free - device.memory_info().total // 32)
    blocks.append(pool.malloc(1000))
    assert held_after_a_step() == 10 * MIB
    rest.close()
    assert held_after_a_step() == 14 * MIB
    for address in blocks:
        pool.free(address)
