"""Blocks that PyTorch uses on a second stream, as Tensor.record_stream tells of it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import CDLL, c_int, c_void_p

import pytest

from vramkit import Pool
from vramkit.driver import Device, Driver, Stream

BYTES = 4096
LONG_NS = 50_000_000


@pytest.fixture
def torch(library: CDLL, device: Device) -> Iterator[CDLL]:
    signatures = {
        "vramkit_torch_segment": (c_void_p, ctypes.c_ssize_t, c_int, c_void_p),
        "vramkit_torch_record_stream": (None, c_void_p, c_void_p),
        "vramkit_torch_empty_cache": (None,),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    yield library
    device.synchronize()
    library.vramkit_torch_empty_cache()  # frees what is held
    Pool.instance(device).close()


@pytest.fixture
def second(device: Device) -> Iterator[Stream]:
    with device.stream() as stream:
        yield stream


def used_on_both(torch: CDLL, device: Device, own: Stream, second: Stream) -> int:
    """A block that the second stream will write to after a long while."""
    block: int = torch.vramkit_torch_malloc(BYTES, 0, own.handle)
    device.fill(block, 1, BYTES, stream=own)
    second.wait(own)
    device.kernels.spin(LONG_NS, stream=second)
    device.fill(block, 2, BYTES, stream=second)
    return block


def test_a_recorded_block_is_held_until_the_stream_is_past(
    torch: CDLL, device: Device, own: Stream, second: Stream
) -> None:
    pool = Pool.instance(device)
    block = used_on_both(torch, device, own, second)
    torch.vramkit_torch_record_stream(block, second.handle)
    torch.vramkit_torch_free(block, BYTES, 0, own.handle)
    assert (pool.stats().current_usage, pool.stats().waiting) == (0, BYTES)
    other = torch.vramkit_torch_malloc(BYTES, 0, own.handle)
    assert other != block
    device.fill(other, 3, BYTES, stream=own)
    second.synchronize()
    taken = [other]
    while taken[-1] != block:  # behind what the thread has in its cache
        taken.append(torch.vramkit_torch_malloc(BYTES, 0, own.handle))
        assert len(taken) < 100
    for each in taken:
        torch.vramkit_torch_free(each, BYTES, 0, own.handle)
    assert pool.stats().current_usage == 0


@pytest.mark.sim_only
@pytest.mark.expects_reports
def test_an_unrecorded_block_is_a_race(
    torch: CDLL, driver: Driver, device: Device, own: Stream, second: Stream
) -> None:
    block = used_on_both(torch, device, own, second)
    torch.vramkit_torch_free(block, BYTES, 0, own.handle)
    assert torch.vramkit_torch_malloc(BYTES, 0, own.handle) == block
    device.fill(block, 3, BYTES, stream=own)
    torch.vramkit_torch_free(block, BYTES, 0, own.handle)
    assert driver.sim is not None
    assert {report.kind for report in driver.sim.reports()} == {"race"}


def test_its_own_stream_holds_nothing(torch: CDLL, device: Device, own: Stream) -> None:
    block = torch.vramkit_torch_malloc(BYTES, 0, own.handle)
    torch.vramkit_torch_record_stream(block, own.handle)
    torch.vramkit_torch_free(block, BYTES, 0, own.handle)
    assert Pool.instance(device).stats().current_usage == 0


def test_a_segment_that_is_not_to_be_had_is_null(torch: CDLL, own: Stream) -> None:
    assert torch.vramkit_torch_segment(1 << 42, 0, own.handle) is None
    assert str(1 << 42).encode() in torch.vramkit_last_error()


@pytest.mark.sim(capacity="64MiB")
@pytest.mark.sim_only
def test_short_of_memory_held_blocks_are_waited_for(
    torch: CDLL, device: Device, own: Stream, second: Stream
) -> None:
    large = 40 << 20
    block = torch.vramkit_torch_malloc(large, 0, own.handle)
    second.wait(own)
    device.kernels.spin(LONG_NS, stream=second)
    torch.vramkit_torch_record_stream(block, second.handle)
    torch.vramkit_torch_free(block, large, 0, own.handle)
    assert torch.vramkit_torch_malloc(large, 0, own.handle) == block
    torch.vramkit_torch_free(block, large, 0, own.handle)


def test_empty_cache_gives_idle_memory_back(torch: CDLL, device: Device, own: Stream) -> None:
    block = torch.vramkit_torch_malloc(BYTES, 0, own.handle)
    torch.vramkit_torch_free(block, BYTES, 0, own.handle)
    own.synchronize()
    torch.vramkit_torch_empty_cache()
    own.synchronize()
    torch.vramkit_torch_empty_cache()
    assert Pool.instance(device).stats().reserved == 0
