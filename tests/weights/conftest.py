"""A device for each test, the controls of the simulated GPU, and how offload() finds it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vramkit.driver import Device, Driver, Simulator


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.fixture
def sim(driver: Driver) -> Simulator:
    assert driver.sim is not None
    return driver.sim


@pytest.fixture
def simulated(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """offload() opens the simulated GPU by itself."""
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")


@pytest.fixture
def inference(simulated: None) -> Iterator[None]:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        yield
