"""Bad input is one clear exception each, and changes nothing."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from vramkit.driver import ClosedError, Device, Driver, Stream
from vramkit.resources import Resource

from .makers import HUGE, check_accounts, layers


@pytest.mark.parametrize("size", [0, -1, -(2**70), 2**40 + 1, 2**63, 2**64, 2**100])
def test_sizes_that_no_block_has(resource: Resource, size: int) -> None:
    for call in (resource.malloc, resource.allocate):
        with pytest.raises(ValueError, match="1 to 1099511627776"):
            call(size)


@pytest.mark.parametrize("size", [1.5, "4096", b"1", None])
def test_sizes_that_are_no_integers(resource: Resource, size: Any) -> None:
    for call in (resource.malloc, resource.allocate):
        with pytest.raises(TypeError, match="integer"):
            call(size)


@pytest.mark.parametrize("address", [0, 1, -1, 256, 2**47, 2**64, 2**80])
def test_numbers_that_are_no_pointers(resource: Resource, address: int) -> None:
    for call in (resource.free, lambda address: resource.deallocate(address, 1)):
        with pytest.raises(ValueError, match="pointer"):
            call(address)
    for none in (str(address), None):
        with pytest.raises(TypeError, match="integer"):
            resource.free(none)  # type: ignore[arg-type]


def test_pointers_of_others(resource: Resource, device: Device) -> None:
    with device.alloc(4096) as memory, pytest.raises(ValueError, match="pointer"):
        resource.free(memory.address)
    *_, lowest = layers(resource)
    if lowest is not resource:
        address = lowest.malloc(4096)
        with pytest.raises(ValueError, match="not allocated through it"):
            resource.free(address)
        lowest.free(address)


def test_pointers_into_a_block(resource: Resource) -> None:
    address = resource.malloc(1000)
    for offset in (1, 256, 999):
        with pytest.raises(ValueError, match="inside a block"):
            resource.free(address + offset)
    check_accounts(resource, [1000])
    resource.free(address)


def test_freed_twice(resource: Resource) -> None:
    address, other = resource.malloc(1000), resource.malloc(1000)
    resource.free(address)
    with pytest.raises(ValueError, match="freed twice"):
        resource.free(address)
    check_accounts(resource, [1000])
    resource.free(other)


def test_a_wrong_size(resource: Resource) -> None:
    address = resource.malloc(1000)
    for wrong in (999, 1001, 2000):
        with pytest.raises(ValueError, match=f"the block has 1000 bytes, not {wrong}"):
            resource.free(address, wrong)
    for none in (0, -5, 2**64):
        with pytest.raises(ValueError, match="size is"):
            resource.free(address, none)
    check_accounts(resource, [1000])
    resource.free(address, 1000)


def test_a_closed_stream(resource: Resource, device: Device) -> None:
    stream = device.stream()
    address = resource.malloc(1000, stream)
    buffer = resource.allocate(500, stream=stream)
    stream.close()
    for call in (
        lambda: resource.malloc(1000, stream),
        lambda: resource.allocate(1000, stream=stream),
        lambda: resource.free(address, stream=stream),
        lambda: buffer.close(stream),
    ):
        with pytest.raises(ClosedError, match="Stream is closed"):
            call()
    assert not buffer.closed
    check_accounts(resource, [1000, 500])
    resource.free(address)
    buffer.close()


@pytest.mark.parametrize("stream", [7, "stream", 0, object(), Stream])
def test_things_that_are_no_streams(resource: Resource, stream: object) -> None:
    address = resource.malloc(1000)
    for call in (
        lambda: resource.malloc(1000, stream),
        lambda: resource.free(address, stream=stream),
    ):
        with pytest.raises(TypeError, match="a stream is a vramkit Stream or an object with"):
            call()
    resource.free(address)


@pytest.mark.parametrize("handle", ["x", -5, None])
def test_handles_that_are_no_numbers(resource: Resource, handle: Any) -> None:
    class Wrong:
        def __cuda_stream__(self) -> Any:
            return 0, handle

    with pytest.raises(TypeError, match=r"Wrong.__cuda_stream__\(\) must return \(version, handle"):
        resource.malloc(1000, Wrong())
    check_accounts(resource, [])


@pytest.mark.sim_only
@pytest.mark.sim(devices=2)
def test_a_stream_of_another_device(resource: Resource, driver: Driver) -> None:
    address = resource.malloc(1000)
    with driver.device(1).stream() as stream:

        class Foreign:
            def __cuda_stream__(self) -> tuple[int, int]:
                return stream.__cuda_stream__()

        for given, words in ((stream, "another device"), (Foreign(), "another context")):
            with pytest.raises(ValueError, match=words):
                resource.malloc(1000, given)
            with pytest.raises(ValueError, match=words):
                resource.free(address, stream=given)
    check_accounts(resource, [1000])
    resource.free(address)


def test_close_while_blocks_are_live(resource: Resource) -> None:
    address = resource.malloc(1000)
    with pytest.raises(ValueError, match="in use"):
        resource.close()
    resource.free(address)


def test_a_with_statement_closes_whatever_happens(resource: Resource) -> None:
    with pytest.raises(KeyError), resource:  # type: ignore[attr-defined]
        raise KeyError
    assert resource.closed
    assert repr(resource).endswith(", closed>")


def test_blocks_that_an_exception_leaves_in_use_do_not_hide_it(resource: Resource) -> None:
    with pytest.raises(KeyError), resource:  # type: ignore[attr-defined]
        address = resource.malloc(1000)
        raise KeyError
    assert not resource.closed
    assert "closed" not in repr(resource)
    resource.free(address)
    with pytest.raises(ValueError, match="in use"), resource:  # type: ignore[attr-defined]
        address = resource.malloc(1000)
    resource.free(address)


def test_copies_and_pickles_are_refused(resource: Resource) -> None:
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="pickle"):
            make(resource)


def test_use_after_close(resource: Resource) -> None:
    address = resource.malloc(1000)
    resource.free(address)
    resource.close()
    resource.close()
    assert resource.closed
    for call in (
        lambda: resource.malloc(1000),
        lambda: resource.allocate(1000),
        lambda: resource.free(address),
        lambda: resource.deallocate(address, 1000),
    ):
        with pytest.raises(ClosedError, match="is closed"):
            call()


def test_a_closed_resource_says_so_of_any_request(resource: Resource) -> None:
    """Also of one that an adaptor above it would refuse."""
    *_, lowest = layers(resource)
    lowest.close()
    for size in (1000, HUGE):
        with pytest.raises(ClosedError, match="is closed"):
            resource.malloc(size)


@pytest.mark.sim_only
def test_use_after_a_reset_of_the_simulated_gpu(resource: Resource, driver: Driver) -> None:
    with driver.device().stream() as stream:
        address = resource.malloc(1000, stream)
        buffer = resource.allocate(500, stream=stream)
        dropped = resource.allocate(500)
        assert driver.sim is not None
        driver.sim.reset()
        assert resource.closed
        for call in (lambda: resource.malloc(1000), lambda: resource.free(address)):
            with pytest.raises(ClosedError, match="the simulated GPU was reset"):
                call()
        del dropped
        buffer.close()
        assert buffer.closed
        resource.close()
    # A new stream may have the old one's number; nothing of the old life may touch it.
    with driver.device().stream():
        pass
