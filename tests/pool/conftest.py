"""A device and a pool for each test; the pool must be empty when the test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from vramkit import Pool
from vramkit.driver import Device, Driver, Simulator, Stream

from . import nvtx
from .graphs import Graphs


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.fixture
def sim(driver: Driver) -> Simulator:
    """The controls of the simulated GPU; for tests that are marked sim_only."""
    assert driver.sim is not None
    return driver.sim


@pytest.fixture
def pool(device: Device, request: pytest.FixtureRequest) -> Iterator[Pool]:
    made = Pool(device=device, background=False)  # the tests count calls
    failed = request.session.testsfailed
    yield made
    if request.session.testsfailed > failed:
        return  # it has said what is wrong, and may have left blocks
    if not made.closed:
        assert made.check_invariants() == ""
    made.close()


@pytest.fixture
def graphs(driver: Driver) -> Iterator[Graphs]:
    made = Graphs(driver)
    yield made
    made.close()


@pytest.fixture
def streams(device: Device) -> Iterator[list[Stream]]:
    made = [device.stream() for _ in range(3)]
    yield made
    for stream in made:
        stream.close()


@pytest.fixture
def owner(streams: list[Stream]) -> Stream:
    """The stream that shared blocks are allocated on."""
    return streams[0]


@pytest.fixture
def other(streams: list[Stream]) -> Stream:
    """Another stream that uses them."""
    return streams[1]


@pytest.fixture(scope="session")
def built_tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvtx.build(tmp_path_factory.mktemp("nvtx"))


@pytest.fixture
def tool(built_tool: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nvtx.Tool]:
    """Loaded by the first pool that wants one. All that was said must be well said."""
    monkeypatch.setenv(nvtx.VARIABLE, str(built_tool))
    made = nvtx.Tool(built_tool)
    yield made
    assert made.fault == ""


@pytest.fixture
def marked(tool: nvtx.Tool, device: Device) -> Iterator[Pool]:
    with Pool(device=device, background=False, nvtx=True, limit=nvtx.LIMIT) as pool:
        yield pool
    assert (tool.heaps, tool.regions) == ({}, {})
