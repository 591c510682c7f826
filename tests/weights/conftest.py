"""A device for each test, and the controls of the simulated GPU."""

from __future__ import annotations

import pytest

from vramkit.driver import Device, Driver, Simulator


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.fixture
def sim(driver: Driver) -> Simulator:
    assert driver.sim is not None
    return driver.sim
