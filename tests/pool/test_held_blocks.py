"""Blocks that are used on other streams too: freed, they are held until those are past."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vramkit import Pool
from vramkit.driver import Device, Driver, Simulator, Stream

from .held import SECOND, SIZE, is_held, shared_block, taken_by, used_on_both
from .support import MIB, calls

# Held, and released


@pytest.mark.sim_only
@pytest.mark.parametrize("size", [4096, SIZE])
def test_a_shared_block_is_held_until_the_other_stream_is_past(
    pool: Pool, device: Device, sim: Simulator, owner: Stream, other: Stream, size: int
) -> None:
    address = shared_block(pool, device, owner, other, size=size)
    before = sim.now()
    pool.free(address, size)
    stats = pool.stats()
    assert (stats.current_usage, stats.free_count, stats.waiting) == (0, 1, size)
    assert taken_by(pool, device, owner, size) != address
    assert is_held(pool, address, owner, size)
    assert is_held(pool, address, other, size)
    assert sim.now() - before < 0.1  # neither host nor owner has waited
    other.synchronize()
    pool.step()
    assert not is_held(pool, address, owner, size)


@pytest.mark.sim_only
def test_it_is_held_until_all_of_several_are_past(
    pool: Pool, device: Device, streams: list[Stream]
) -> None:
    owner, first, second = streams
    address = shared_block(pool, device, owner, first, second)
    pool.also_used_on(address, first)  # twice is once
    pool.free(address)
    first.synchronize()
    pool.step()
    assert is_held(pool, address, owner)
    second.synchronize()
    pool.step()
    assert not is_held(pool, address, owner)


@pytest.mark.sim_only
def test_work_issued_after_the_free_does_not_hold_it(
    pool: Pool, device: Device, owner: Stream, other: Stream
) -> None:
    address = shared_block(pool, device, owner, other)
    pool.free(address)
    with device.event() as event:
        event.record(other)
        device.kernels.spin(100 * SECOND, stream=other)
        event.synchronize()
    pool.step()
    assert taken_by(pool, device, owner) == address


def test_used_on_its_own_stream_in_no_order_it_is_held_for_that(
    pool: Pool, device: Device, owner: Stream, other: Stream
) -> None:
    half = SIZE // 2
    address = pool.malloc(SIZE, owner)
    other.wait(owner)
    device.kernels.spin(SECOND, stream=owner)
    device.fill(address, 1, half, stream=owner)
    device.fill(address + half, 2, half, stream=other)
    pool.also_used_on(address, owner)
    pool.free(address, stream=other)
    assert taken_by(pool, device, other) != address
    owner.synchronize()
    pool.step()
    assert not is_held(pool, address, other)


RELEASES: dict[str, Callable[[Pool, Stream], object]] = {
    "a request that misses": lambda pool, stream: pool.free(pool.malloc(2 * SIZE, stream)),
    "the free of another shared block": lambda pool, stream: free_another(pool, stream),
    "step": lambda pool, _: pool.step(),
}


def free_another(pool: Pool, stream: Stream) -> None:
    another = pool.malloc(2 * MIB, stream)
    pool.also_used_on(another, None)
    pool.free(another)


@pytest.mark.sim_only
@pytest.mark.parametrize("way", RELEASES)
def test_released_it_is_the_owners_again(
    pool: Pool, device: Device, sim: Simulator, owner: Stream, other: Stream, way: str
) -> None:
    address = shared_block(pool, device, owner, other)
    pool.free(address)
    other.synchronize()
    RELEASES[way](pool, owner)
    calls(sim)
    again = pool.malloc(SIZE, owner)
    assert calls(sim) == {}  # it was the owner's before
    assert again == address
    device.fill(again, 3, SIZE, stream=owner)
    pool.free(again)


def test_a_request_that_finds_the_other_stream_past_has_the_block(
    pool: Pool, device: Device, owner: Stream, other: Stream
) -> None:
    address = shared_block(pool, device, owner, other)
    pool.free(address)
    other.synchronize()
    assert taken_by(pool, device, owner) == address
    assert pool.stats().reserved == SIZE


@pytest.mark.sim_only
def test_trim_gives_it_back_once_the_other_stream_is_past(
    pool: Pool, device: Device, owner: Stream, other: Stream
) -> None:
    pool.free(shared_block(pool, device, owner, other))
    owner.synchronize()
    assert pool.trim() == 0
    other.synchronize()
    assert pool.trim() == SIZE
    assert pool.stats().reserved == 0


@pytest.mark.sim_only
def test_release_all_and_close_wait_for_the_other_stream(
    pool: Pool, device: Device, sim: Simulator, owner: Stream, other: Stream
) -> None:
    for give_back in (pool.release_all, pool.close):
        before = sim.now()
        pool.free(shared_block(pool, device, owner, other))
        give_back()
        assert sim.now() - before >= 1.0
        assert pool.stats().reserved == 0


def test_short_of_memory_the_other_stream_is_waited_for(
    pool: Pool, device: Device, owner: Stream, other: Stream
) -> None:
    pool.configure(limit=SIZE)
    address = shared_block(pool, device, owner, other)
    pool.free(address)
    assert pool.try_malloc(SIZE, owner) is None
    assert taken_by(pool, device, owner) == address


# Where nothing is held


@pytest.mark.sim_only
def test_its_own_stream_changes_nothing(
    pool: Pool, device: Device, sim: Simulator, owner: Stream
) -> None:
    address = pool.malloc(SIZE, owner)
    calls(sim)
    pool.also_used_on(address, owner)
    pool.free(address)
    assert calls(sim) == {}
    assert pool.malloc(SIZE, owner) == address
    pool.free(address)


def test_freed_on_the_other_stream_it_is_that_ones(
    pool: Pool, device: Device, owner: Stream, other: Stream
) -> None:
    address = shared_block(pool, device, owner, other)
    pool.free(address, stream=other)
    assert taken_by(pool, device, other) == address


@pytest.mark.sim_only
def test_a_stream_that_is_past_already_holds_nothing(
    pool: Pool, device: Device, sim: Simulator, owner: Stream, other: Stream
) -> None:
    address = shared_block(pool, device, owner, other)
    other.synchronize()
    calls(sim)
    pool.free(address)
    assert calls(sim) == {
        "cuStreamIsCapturing": 2,
        "cuEventCreate": 1,
        "cuEventRecord": 1,
        "cuEventQuery": 1,
    }
    assert taken_by(pool, device, owner) == address


def test_other_uses_end_with_the_free(
    pool: Pool, device: Device, owner: Stream, other: Stream
) -> None:
    address = shared_block(pool, device, owner, other)
    other.synchronize()
    pool.free(address)
    assert pool.malloc(SIZE, owner) == address
    device.kernels.spin(SECOND, stream=other)
    pool.free(address)  # not shared this time
    assert pool.malloc(SIZE, owner) == address
    pool.free(address)


@pytest.mark.sim_only
def test_straight_from_the_driver_the_free_waits_for_all_streams(
    pool: Pool, device: Device, sim: Simulator, owner: Stream, other: Stream
) -> None:
    pool.configure(large="direct")
    address = pool.malloc(SIZE, owner)
    pool.also_used_on(address, other)
    device.kernels.spin(SECOND, stream=other)
    before = sim.now()
    pool.free(address)
    assert sim.now() - before >= 0.9
    assert pool.stats().reserved == 0


# What the checker says


@pytest.mark.sim_only
def test_the_checker_has_nothing_to_say(
    pool: Pool, driver: Driver, device: Device, owner: Stream, other: Stream
) -> None:
    assert driver.sim is not None
    pool.free(shared_block(pool, device, owner, other))
    for stream in (owner, other):
        for _ in range(3):
            taken_by(pool, device, stream)
    device.synchronize()
    for stream in (owner, other):
        for _ in range(3):
            taken_by(pool, device, stream)
    assert driver.sim.reports() == []


@pytest.mark.sim_only
@pytest.mark.expects_reports
def test_without_it_a_race_is_reported(
    pool: Pool, driver: Driver, device: Device, owner: Stream, other: Stream
) -> None:
    assert driver.sim is not None
    address = used_on_both(pool, device, owner, other)
    pool.free(address)
    (report,) = driver.sim.reports()
    assert (report.kind, report.second.access) == ("race", "free")
    assert (report.first.stream, report.second.stream) == (other.id, owner.id)
