"""The plain driver behind DirectResource and AsyncResource."""

from __future__ import annotations

from typing import Any

import pytest

from vramkit.driver import ClosedError, Device, Driver
from vramkit.resources import AsyncResource, DirectResource

MIB = 1 << 20
ALL = 2**64 - 1


@pytest.mark.sim_only
def test_direct_asks_the_driver_for_every_block(driver: Driver, device: Device) -> None:
    assert driver.sim is not None
    with DirectResource(device=device) as resource, device.stream() as stream:
        driver.sim.reset_call_counts()
        for _ in range(3):
            resource.free(resource.malloc(4096, stream))
        counts = driver.sim.call_counts()
        assert (counts["cuMemAlloc_v2"], counts["cuMemFree_v2"]) == (3, 3)
        assert counts["cuStreamSynchronize"] == 3
        assert resource.reserved_bytes == 0


@pytest.mark.sim_only
def test_async_uses_its_own_pool_and_never_waits(driver: Driver, device: Device) -> None:
    assert driver.sim is not None
    with AsyncResource(device=device) as resource, device.stream() as stream:
        device.kernels.spin(10**9, stream=stream)
        before = driver.sim.now()
        driver.sim.reset_call_counts()
        for _ in range(3):
            resource.free(resource.malloc(4096, stream))
        counts = driver.sim.call_counts()
        assert (counts["cuMemAllocFromPoolAsync"], counts["cuMemFreeAsync"]) == (3, 3)
        assert driver.sim.now() - before < 0.1


def test_an_own_pool_keeps_its_memory_until_it_is_told(device: Device) -> None:
    with AsyncResource(device=device) as resource, device.stream() as stream:
        assert resource.release_threshold == ALL
        resource.free(resource.malloc(8 * MIB, stream))
        stream.synchronize()
        assert resource.reserved_bytes >= 8 * MIB
        resource.trim()
        assert resource.reserved_bytes == 0
    with pytest.raises(ClosedError, match="the AsyncResource is closed"):
        resource.trim()


def test_a_threshold_gives_memory_back_at_a_synchronisation(device: Device) -> None:
    with AsyncResource(device=device, release_threshold=0) as resource, device.stream() as stream:
        assert resource.release_threshold == 0
        resource.free(resource.malloc(64 * MIB, stream))
        stream.synchronize()
        assert resource.reserved_bytes == 0


def test_a_shared_pool_gets_its_threshold_back(device: Device) -> None:
    with AsyncResource(device=device, shared=True) as first:
        before = first.release_threshold
        with AsyncResource(device=device, shared=True, release_threshold=5 * MIB) as second:
            assert (first.release_threshold, second.release_threshold) == (5 * MIB, 5 * MIB)
        assert first.release_threshold == before


@pytest.mark.parametrize("threshold", [-1, 2**64])
def test_thresholds_that_are_none(device: Device, threshold: int) -> None:
    with pytest.raises(ValueError, match=f"is {threshold}; it may be None, or an integer from 0"):
        AsyncResource(device=device, release_threshold=threshold)


def test_things_that_are_no_settings(device: Device) -> None:
    given: Any
    for given in ("x", 1.5, b""):
        with pytest.raises(TypeError, match=r"threshold is .*; it may be None, or an integer"):
            AsyncResource(device=device, release_threshold=given)
        with pytest.raises(TypeError, match=r"shared is .*; it may be True or False"):
            AsyncResource(device=device, shared=given)
