"""Granules of any size that a profile may have: memory of different kinds shares no addresses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from vramkit.driver import Driver

KIB = 1024


@pytest.mark.sim_only
@pytest.mark.parametrize("granularity", [64 * KIB, 256 * KIB, 1024 * KIB, 2048 * KIB])
def test_blocks_and_reservations_lie_beside_each_other(
    driver: Driver, tmp_path: Path, granularity: int
) -> None:
    assert driver.sim is not None
    profile = tmp_path / "granules.toml"
    profile.write_text(f'name = "granules"\nextends = "h200"\ngranularity = {granularity}\n')
    driver.sim.reset(profile)
    device = driver.device()
    sizes = [512, 32 * KIB, 33 * KIB, 64 * KIB, 100 * KIB, 512 * KIB, 1024 * KIB, 1025 * KIB]
    memory = []
    for nbytes in sizes:
        memory.append(device.alloc(nbytes))
        memory.append(device.reserve(granularity))
    ranges = sorted((each.address, each.address + each.nbytes) for each in memory)
    for (_, end), (begin, _) in pairwise(ranges):
        assert end <= begin
    for each in memory[::2]:
        device.fill(each, 1)  # all of it is there
    device.synchronize()
    for each in memory:
        each.close()
