"""Programs played on a pool without a background thread, so that the same is the same again."""

from __future__ import annotations

from vramkit import Pool
from vramkit.driver import Device, Driver
from vramkit.lab.player import play
from vramkit.lab.program import Program
from vramkit.pool import PoolStats

from .support import Plain


def simulated_card(driver: Driver, gib: int = 140) -> Device:
    """A fresh one that keeps sizes and times only."""
    assert driver.sim is not None
    driver.sim.reset(data=False, checker=False, capacity=f"{gib}GiB")
    return driver.device()


def stats_of(program: Program, device: Device, *, limit: int | None = None) -> PoolStats:
    """Raises OutOfMemoryError if the program does not come to its end."""
    with Pool(device=device, background=False, limit=limit) as pool:
        play(program, Plain(pool), device)
        assert pool.check_invariants() == ""
        return pool.stats()
