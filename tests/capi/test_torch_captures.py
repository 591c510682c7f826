"""PyTorch's blocks and captures: its streams last, so a free needs none to know where it is."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import CDLL

import pytest
from pool.graphs import Graphs
from pool.support import all_ended, captures, eventually, take_all

from vramkit import Pool
from vramkit.driver import Device, Driver, Stream

BYTES = 4 << 20


class Blocks:
    """What PyTorch does with the process-wide pool, on one stream."""

    def __init__(self, library: CDLL, stream: Stream) -> None:
        self._library = library
        self._stream = stream

    def malloc(self) -> int:
        address: int = self._library.vramkit_torch_malloc(BYTES, 0, self._stream.handle)
        return address

    def free(self, address: int) -> None:
        self._library.vramkit_torch_free(address, BYTES, 0, self._stream.handle)


@pytest.fixture
def pool(device: Device) -> Iterator[Pool]:
    with Pool.instance(device) as shared:
        yield shared
        device.synchronize()


@pytest.fixture
def graphs(driver: Driver) -> Iterator[Graphs]:
    made = Graphs(driver)
    yield made
    made.close()


@pytest.fixture
def other(device: Device) -> Iterator[Stream]:
    with device.stream() as stream:
        yield stream


@pytest.fixture
def torch(library: CDLL, pool: Pool, own: Stream) -> Blocks:
    assert pool.stats().current_usage == 0  # made before the streams, closed behind them
    return Blocks(library, own)


def is_told(pool: Pool, left: int) -> bool:
    """The driver tells of the end of a graph on a thread of its own."""
    return eventually(lambda: not pool.step() and captures(pool) == left)


def test_freed_inside_its_capture_a_block_is_the_captures_again(
    torch: Blocks, pool: Pool, device: Device, graphs: Graphs, own: Stream, other: Stream
) -> None:
    with graphs.capture(own) as graph:
        address = torch.malloc()
        device.fill(address, 1, BYTES, stream=own)
        for _ in range(3):
            torch.free(address)
            assert torch.malloc() == address
        torch.free(address)
    assert graph.nodes() == 1
    assert address not in take_all(pool, BYTES, [own, other], 4)
    graph.launch(own)
    device.synchronize()
    graph.close()
    assert all_ended(pool)
    assert pool.trim() > 0
    assert pool.stats().reserved == 0


@pytest.mark.sim_only
@pytest.mark.parametrize("graph_first", [False, True])
def test_freed_behind_its_capture_a_block_waits_for_its_stream(
    torch: Blocks,
    pool: Pool,
    device: Device,
    driver: Driver,
    graphs: Graphs,
    own: Stream,
    other: Stream,
    graph_first: bool,
) -> None:
    with graphs.capture(own) as graph:
        address = torch.malloc()
        device.fill(address, 1, BYTES, stream=own)
    graph.launch(own)
    own.synchronize()
    device.kernels.spin(10**9, stream=own)
    device.fill(address, 2, BYTES, stream=own)  # the result is read
    if graph_first:
        graph.close()
        assert is_told(pool, 0)
    torch.free(address)
    if not graph_first:
        graph.close()
        assert is_told(pool, 0)
    assert address not in take_all(pool, BYTES, [other], 4)
    own.synchronize()
    taken = [pool.malloc(BYTES, other) for _ in range(5)]
    assert address in taken
    for each in taken:
        device.fill(each, 3, BYTES, stream=other)
        pool.free(each)
    assert driver.sim is not None
    assert "cuMemFree_v2" not in driver.sim.call_counts()


@pytest.mark.parametrize("forward_first", [False, True])
def test_freed_inside_a_later_capture_of_its_stream_a_block_waits_for_both(
    torch: Blocks,
    pool: Pool,
    device: Device,
    graphs: Graphs,
    own: Stream,
    other: Stream,
    forward_first: bool,
) -> None:
    with graphs.capture(own) as forward:
        address = torch.malloc()
        device.fill(address, 1, BYTES, stream=own)
    with graphs.capture(own) as backward:
        device.fill(address, 2, BYTES, stream=own)
        torch.free(address)
        inside = torch.malloc()
        assert inside != address
        torch.free(inside)
    first, last = (forward, backward) if forward_first else (backward, forward)
    first.close()
    assert is_told(pool, 1)
    assert address not in take_all(pool, BYTES, [own, other], 4)
    last.launch(own)
    device.synchronize()
    last.close()
    assert all_ended(pool)
    assert address in take_all(pool, BYTES, [own, other], 8)


@pytest.mark.sim_only
def test_an_ordinary_block_freed_during_a_capture_is_its_streams(
    torch: Blocks, pool: Pool, graphs: Graphs, own: Stream
) -> None:
    """PyTorch frees what no captured work uses in the same way: no graph holds it."""
    address = torch.malloc()
    with graphs.capture(own) as graph:
        torch.free(address)
        inside = torch.malloc()
        assert inside != address
        torch.free(inside)
    assert torch.malloc() == address
    torch.free(address)
    graph.close()
    assert all_ended(pool)
