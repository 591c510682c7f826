"""After an error that ends the context, as a kernel's bad access does: nothing hangs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vramkit import Pool
from vramkit.driver import Device, DriverError, Simulator, Stream

from .support import MIB

LOST = "CUDA_ERROR_LAUNCH_FAILED"

OPERATIONS: dict[str, Callable[[Pool, Stream], object]] = {
    "malloc": lambda pool, stream: pool.malloc(4096, stream),
    "another size": lambda pool, stream: pool.malloc(300_000, stream),
    "growth": lambda pool, stream: pool.malloc(100 * MIB, stream),
    "try_malloc": lambda pool, stream: pool.try_malloc(100 * MIB, stream),
    "step": lambda pool, _: pool.step(),
    "trim": lambda pool, _: pool.trim(),
    "release_all": lambda pool, _: pool.release_all(),
    "defragment": lambda pool, _: pool.defragment(),
    "preallocate": lambda pool, _: pool.preallocate(4 * MIB, 2),
    "stats": lambda pool, _: pool.stats(),
    "snapshot": lambda pool, _: pool.snapshot(),
}


@pytest.mark.sim_only
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_lost_context_costs_an_error_at_most(device: Device, sim: Simulator, name: str) -> None:
    pool = Pool(device=device, background=False, limit=256 * MIB)
    stream = device.stream()
    address = pool.malloc(4096, stream)
    for block in [pool.malloc(size, stream) for size in (4096, 4 * MIB, 40 * MIB)]:
        device.fill(block, 1, 4096, stream=stream)
        pool.free(block)
    sim.lose_device()
    try:
        OPERATIONS[name](pool, stream)
    except DriverError as error:
        assert LOST in str(error)
    assert pool.check_invariants() == ""
    pool.free(address)
    if pool.stats().current_usage == 0:
        pool.close()
        assert pool.closed
    sim.reset()  # what the driver would not take back ends with the context


@pytest.mark.sim_only
def test_a_new_pool_on_the_lost_device_says_so(device: Device, sim: Simulator) -> None:
    sim.lose_device()
    with pytest.raises(DriverError, match=LOST):
        Pool(device=device, background=False)
