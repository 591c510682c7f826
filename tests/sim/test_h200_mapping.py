"""Many pieces mapped in a row beside a kernel: the profile h200 against what an H200 took."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from vramkit.driver import Device, Driver

pytestmark = pytest.mark.sim_only

MIB = 1 << 20


@pytest.fixture
def device(driver: Driver) -> Iterator[Device]:
    assert driver.sim is not None
    driver.sim.reset(profile="h200", data=False)
    yield driver.device()


def beside_a_kernel(driver: Driver, calls: Callable[[], None]) -> float:
    """Host time of `calls` in microseconds."""
    assert driver.sim is not None
    with driver.device().stream() as stream:
        driver.device().kernels.spin(20_000_000, stream=stream)
        driver.sim.advance(200e-6)
        start = driver.sim.now()
        calls()
        elapsed = driver.sim.now() - start
        assert not stream.query()
        stream.synchronize()
    return elapsed * 1e6


def test_pieces_that_move_cost_36_us_each(driver: Driver, device: Device) -> None:
    count, size = 64, 4 * MIB
    with ExitStack() as stack:
        pieces = [stack.enter_context(device.create(size)) for _ in range(count)]
        old, new = (stack.enter_context(device.reserve(count * size)) for _ in range(2))
        for i, piece in enumerate(pieces):
            old.map(piece, i * size)
        old.set_access()

        def move() -> None:
            for i, piece in enumerate(pieces):
                new.map(piece, i * size)
            new.set_access()

        assert beside_a_kernel(driver, move) == pytest.approx(count * 36, rel=0.1)


def test_new_pieces_of_64_mib_cost_87_us_each(driver: Driver, device: Device) -> None:
    count, size = 16, 64 * MIB
    with ExitStack() as stack:
        addresses = stack.enter_context(device.reserve(count * size))

        def grow() -> None:
            for i in range(count):
                addresses.map(stack.enter_context(device.create(size)), i * size)
            addresses.set_access()

        assert beside_a_kernel(driver, grow) == pytest.approx(count * 87, rel=0.1)
