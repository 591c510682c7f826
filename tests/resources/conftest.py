"""A device, and each resource in turn; it must be empty when the test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from vramkit.driver import Device, Driver
from vramkit.lab.baselines import FixedPool
from vramkit.resources import Resource

from .makers import MAKERS, MIB, check_accounts, made


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.fixture(params=MAKERS)
def resource(request: pytest.FixtureRequest, device: Device, tmp_path: Path) -> Iterator[Resource]:
    with made(request.param, device, tmp_path) as resource:
        yield resource
        if not resource.closed:
            check_accounts(resource, [])


@pytest.fixture
def below(device: Device) -> Iterator[FixedPool]:
    """A small resource to put an adaptor on."""
    with FixedPool(8 * MIB, device=device) as pool:
        yield pool
