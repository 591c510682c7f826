"""A device and a pool for each test; the pool must be empty when the test ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vramkit import Pool
from vramkit.driver import Device, Driver


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.fixture
def pool(device: Device) -> Iterator[Pool]:
    made = Pool(device=device, background=False)  # the tests count calls
    yield made
    if not made.closed:
        assert made.check_invariants() == ""
    made.close()
