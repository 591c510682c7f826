"""Lent blocks beside streams that end, captures, threads and mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from vramkit import Pool
from vramkit.driver import ClosedError, Device, Simulator, Stream

from .graphs import Graphs
from .held import SECOND, SIZE, is_held, shared_block, taken_by
from .support import Foreign, all_ended, run

# Streams that end


@pytest.mark.sim_only
@pytest.mark.parametrize("when", ["before the free", "while it is held"])
def test_the_other_stream_may_end(
    pool: Pool, device: Device, sim: Simulator, owner: Stream, when: str
) -> None:
    other = device.stream()
    address = shared_block(pool, device, owner, other)
    if when == "before the free":
        other.close()
    pool.free(address)
    other.close()
    pool.step()
    assert is_held(pool, address, owner)
    sim.advance(2.0)
    pool.step()
    assert not is_held(pool, address, owner)


def test_one_that_ended_long_ago_holds_nothing(pool: Pool, device: Device, owner: Stream) -> None:
    other = device.stream()
    address = shared_block(pool, device, owner, other)
    other.synchronize()
    other.close()
    pool.free(address)
    assert taken_by(pool, device, owner) == address


@pytest.mark.sim_only
@pytest.mark.parametrize("when", ["before the free", "while it is held"])
def test_the_owner_may_end(pool: Pool, device: Device, streams: list[Stream], when: str) -> None:
    other, third, _ = streams
    owner = device.stream()
    address = shared_block(pool, device, owner, other)
    if when == "before the free":
        owner.close()
    pool.free(address)
    owner.close()
    pool.step()
    assert is_held(pool, address, third)
    other.synchronize()
    pool.step()
    assert not is_held(pool, address, third)


@pytest.mark.sim_only
def test_one_that_got_no_last_fence_holds_it_until_a_device_sync(
    pool: Pool, device: Device, sim: Simulator, owner: Stream
) -> None:
    other = device.stream()
    address = shared_block(pool, device, owner, other)
    sim.inject("cuEventRecord", code=999)
    other.close()
    sim.clear_faults()
    pool.free(address)
    sim.advance(2.0)
    pool.step()
    assert is_held(pool, address, owner)
    pool.release_all()
    assert pool.stats().reserved == 0


# Captures


@pytest.mark.sim_only
def test_another_streams_capture_stays_whole_and_holds_it_until_its_end(
    pool: Pool, device: Device, graphs: Graphs, owner: Stream, other: Stream
) -> None:
    address = shared_block(pool, device, owner, other)
    with graphs.capture(other) as graph:
        pool.free(address)
        for _ in range(3):
            pool.step()
        assert is_held(pool, address, owner)
    assert graph.nodes() == 0
    pool.step()  # recorded now
    assert is_held(pool, address, owner)
    other.synchronize()
    pool.step()
    assert not is_held(pool, address, owner)


def test_inside_a_capture_the_order_becomes_part_of_the_graph(
    pool: Pool, device: Device, graphs: Graphs, streams: list[Stream]
) -> None:
    origin, branch, _ = streams
    with graphs.capture(origin) as graph:
        address = pool.malloc(SIZE, Foreign(origin))
        device.fill(address, 1, SIZE, stream=origin)
        branch.wait(origin)
        device.fill(address, 2, SIZE, stream=branch)
        pool.also_used_on(address, Foreign(branch))
        pool.free(address, stream=Foreign(origin))
        assert pool.malloc(SIZE, Foreign(origin)) == address
        device.fill(address, 3, SIZE, stream=origin)
        pool.free(address, stream=Foreign(origin))
    # The branch was joined by nothing but the free; unjoined, the capture would have failed.
    assert graph.nodes() == 3
    graph.launch(origin)
    device.synchronize()
    graph.close()
    assert all_ended(pool)


# Threads


def test_other_threads_lend_and_free(pool: Pool, device: Device, streams: list[Stream]) -> None:
    owner, *others = streams
    for _ in range(20):
        address = pool.malloc(SIZE, owner)
        device.fill(address, 1, SIZE, stream=owner)

        def use(stream: Stream, block: int = address) -> None:
            device.fill(block, 2, SIZE, stream=stream)
            pool.also_used_on(block, stream)

        others[0].wait(owner)
        run(lambda: use(others[0]))
        others[1].wait(others[0])
        run(lambda: use(others[1]))
        run(lambda block=address: pool.free(block))
    device.synchronize()
    assert pool.release_all() > 0
    assert pool.stats().reserved == 0


# Mistakes


@pytest.mark.sim_only
def test_freed_twice_and_lent_after_the_free(
    pool: Pool, device: Device, owner: Stream, other: Stream
) -> None:
    address = shared_block(pool, device, owner, other)
    with pytest.raises(ValueError, match=f"the block has {SIZE} bytes, not 1"):
        pool.free(address, 1)
    pool.free(address)
    for misuse in (lambda: pool.free(address), lambda: pool.also_used_on(address, other)):
        with pytest.raises(ValueError, match="the block is not in use: freed twice"):
            misuse()
    other.synchronize()
    pool.step()
    with pytest.raises(ValueError, match="the block is not in use: freed twice"):
        pool.free(address)
    assert pool.stats().free_count == 1


def test_a_pool_with_a_lent_block_does_not_close(
    pool: Pool, device: Device, owner: Stream, other: Stream
) -> None:
    address = shared_block(pool, device, owner, other)
    with pytest.raises(ValueError, match=f"{SIZE} bytes are still in use"):
        pool.close()
    pool.free(address)


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        (lambda block: block + 256, ValueError, "inside a block"),
        (lambda _: 4096, ValueError, "not of this pool"),
        (lambda _: -1, ValueError, "pointer"),
        (lambda _: "4096", TypeError, "integer"),
    ],
)
def test_what_cannot_be_lent(
    pool: Pool, device: Device, other: Stream, address: Any, error: type[Exception], words: str
) -> None:
    block = pool.malloc(SIZE)
    device.kernels.spin(SECOND, stream=other)
    with pytest.raises(error, match=words):
        pool.also_used_on(address(block), other)
    pool.free(block)
    assert pool.malloc(SIZE) == block
    pool.free(block)


def test_to_whom_it_cannot_be_lent(pool: Pool, device: Device) -> None:
    block = pool.malloc(SIZE)
    gone = device.stream()
    gone.close()
    with pytest.raises(ClosedError):
        pool.also_used_on(block, gone)
    with pytest.raises(TypeError):
        pool.also_used_on(block, "stream")
    pool.free(block)
    pool.close()
    with pytest.raises(ClosedError, match="the pool is closed"):
        pool.also_used_on(block, None)
