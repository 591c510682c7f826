"""What owns something of the driver has one owner: it can be neither copied nor pickled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from vramkit import Pool, lab
from vramkit.driver import Device, Driver
from vramkit.resources import (
    AsyncResource,
    DirectResource,
    FailureCallback,
    Limit,
    Recording,
    Statistics,
    Tracking,
)

MIB = 1 << 20

# The name is that of the class; what must be closed is a context manager.
OWNERS: dict[str, Callable[[Device, Path], Any]] = {
    "Driver": lambda device, folder: device.driver,
    "Simulator": lambda device, folder: device.driver.sim,
    "Session": lambda device, folder: device.driver.session,
    "Device": lambda device, folder: device,
    "Kernels": lambda device, folder: device.kernels,
    "Timeline": lambda device, folder: device.timeline(),
    "Stream": lambda device, folder: device.stream(),
    "Event": lambda device, folder: device.event(),
    "DeviceMemory": lambda device, folder: device.alloc(4096),
    "PinnedMemory": lambda device, folder: device.alloc_pinned(4096),
    "RegisteredMemory": lambda device, folder: device.register(bytearray(1 << 16)),
    "AddressRange": lambda device, folder: device.reserve(device.granularity),
    "PhysicalMemory": lambda device, folder: device.create(device.granularity),
    "Pool": lambda device, folder: Pool(device=device, background=False),
    "DirectResource": lambda device, folder: DirectResource(device=device),
    "AsyncResource": lambda device, folder: AsyncResource(device=device),
    "FixedPool": lambda device, folder: lab.baselines.FixedPool(MIB, device=device),
    "Arena": lambda device, folder: lab.baselines.Arena(4 * MIB, device=device),
    "DeviceBuffer": lambda device, folder: DirectResource(device=device).allocate(16),
    "Limit": lambda device, folder: Limit(DirectResource(device=device), MIB),
    "Statistics": lambda device, folder: Statistics(DirectResource(device=device)),
    "Tracking": lambda device, folder: Tracking(DirectResource(device=device)),
    "FailureCallback": lambda device, folder: FailureCallback(DirectResource(device=device), bool),
    "Recording": lambda device, folder: Recording(DirectResource(device=device), folder / "trace"),
}
COPIES: dict[str, Callable[[object], object]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "old pickle": lambda owner: pickle.dumps(owner, protocol=0),
}


@pytest.mark.sim_only
@pytest.mark.parametrize("kind", OWNERS)
def test_an_owner_has_no_copies(driver: Driver, kind: str, tmp_path: Path) -> None:
    with ExitStack() as ends:
        owner = OWNERS[kind](driver.device(), tmp_path)
        if hasattr(owner, "close"):
            ends.callback(owner.close)
        assert type(owner).__name__ == kind
        for way in COPIES.values():
            with pytest.raises(TypeError, match=f"a {kind} can be neither copied nor pickled"):
                way(owner)


def test_a_subclass_is_named(driver: Driver) -> None:
    class MyPool(Pool):
        pass

    words = "a MyPool can be neither copied nor pickled"
    with (
        MyPool(device=driver.device(), background=False) as pool,
        pytest.raises(TypeError, match=words),
    ):
        copy.copy(pool)


def test_a_span_is_plain_data(driver: Driver) -> None:
    with driver.device().alloc(64) as memory:
        span = memory.at(16, 16)
        assert copy.copy(span) == pickle.loads(pickle.dumps(span)) == span
