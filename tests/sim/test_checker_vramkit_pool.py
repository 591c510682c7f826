"""The checker on blocks of vramkit's own pool: what it tells, and what its correct use does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vramkit import Pool
from vramkit.driver import Device, Driver, Report

from .raw_calls import RawCalls

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(stacks="python")]

SIZE = 4096


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.fixture
def pool(device: Device) -> Iterator[Pool]:
    with Pool(device=device, background=False) as made:
        yield made
        device.synchronize()


def reports_of(device: Device) -> list[Report]:
    assert device.driver.sim is not None
    return device.driver.sim.reports()


@pytest.mark.expects_reports
def test_use_after_the_free_of_a_block_that_another_stream_uses(device: Device, pool: Pool) -> None:
    with device.stream() as one, device.stream() as two:
        block = pool.malloc(SIZE, one)
        two.wait(one)
        device.kernels.spin(10**8, stream=two)
        device.fill(block, 1, SIZE, stream=two)
        pool.also_used_on(block, two)
        pool.free(block)
        assert reports_of(device) == []
        device.fill(block, 2, SIZE, stream=two)
        (report,) = reports_of(device)
        assert (report.kind, report.second.stream) == ("use_after_free", two.id)


def test_block_that_was_held_is_handed_out_again_without_a_report(
    device: Device, pool: Pool
) -> None:
    with device.stream() as one, device.stream() as two:
        block = pool.malloc(SIZE, one)
        two.wait(one)
        device.fill(block, 1, SIZE, stream=two)
        pool.also_used_on(block, two)
        pool.free(block)
        device.synchronize()
        again = [pool.malloc(SIZE, one) for _ in range(pool.config.batch_alloc_count + 2)]
        for each in again:
            device.fill(each, 2, SIZE, stream=one)
            pool.free(each)


@pytest.mark.expects_reports
@pytest.mark.parametrize("nbytes", [SIZE, 300, 3 << 20])
def test_access_beyond_a_block(device: Device, pool: Pool, nbytes: int) -> None:
    """Over a neighbour, and over the rest of the class, which nobody has."""
    with device.stream() as stream:
        blocks = sorted(pool.malloc(nbytes, stream) for _ in range(3))
        device.fill(blocks[0], 1, nbytes, stream=stream)
        assert reports_of(device) == []
        device.fill(blocks[0], 1, nbytes + 4, stream=stream)
        (report,) = reports_of(device)
        assert (report.kind, report.nbytes) == ("out_of_bounds", 4)
        assert report.address == blocks[0] + nbytes
        for block in blocks:
            pool.free(block)


@pytest.mark.expects_reports
def test_access_to_memory_of_the_pool_that_is_nobodys(device: Device, pool: Pool) -> None:
    with device.stream() as stream:
        block = pool.malloc(300, stream)
        device.fill(block + 400, 1, 8, stream=stream)
        (report,) = reports_of(device)
        assert (report.kind, report.address, report.nbytes) == ("out_of_bounds", block + 400, 8)
        pool.free(block)


@pytest.mark.expects_reports
def test_graph_launched_after_its_block_was_freed(device: Device, pool: Pool) -> None:
    raw = RawCalls(device.driver)
    with device.stream() as stream:
        block = pool.malloc(SIZE, stream)
        raw.begin(stream)
        device.fill(block, 1, SIZE, stream=stream)
        graph = raw.end(stream)
        raw.launch(graph, stream)
        assert reports_of(device) == []
        pool.free(block)
        other = pool.malloc(SIZE, stream)
        assert other == block
        raw.launch(graph, stream)
        (report,) = reports_of(device)
        assert (report.kind, report.second.call) == ("use_after_free", "cuGraphLaunch")
        pool.free(other)
        raw.destroy(graph)
