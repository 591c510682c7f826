"""Programs whose threads and streams come and go: what they leave serves those that follow."""

from __future__ import annotations

import churn
import pytest
from churn import PROGRAMS, Handles, Program
from soak import rounds

from vramkit.driver import Device

pytestmark = [
    pytest.mark.sim_only,
    pytest.mark.sim(data=False, checker=False, capacity="140GiB"),
]


MIB = 1 << 20
STEPS = rounds(100, 1000)


def most_held(result: churn.Churned) -> int:
    """The bound of the docs: what the programs hold in short runs, or what any program may hold.

    A raw stream that ended without notice leaves what its thread kept and what was freed since its
    last event. Without raw_plain_free: where no free names the stream, no event is recorded.
    """
    cache_bytes = 32 * MIB
    most = result.bound
    if STEPS > 100:
        most = 3 * result.peak_in_use + result.streams * cache_bytes + 64 * MIB
    if result.handles == "raw":
        # Not more than a stream had, as a cache and as blocks without an event.
        left = 2 * min(cache_bytes, result.peak_in_use // result.streams)
        most += (churn.ROUNDS - 1) * result.streams * left
    return most


@pytest.mark.parametrize("handles", ["own", "raw"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_held_is_bounded_by_what_is_in_use(
    program: Program, handles: Handles, device: Device
) -> None:
    result = churn.run(program, device, handles, steps=STEPS)
    assert result.peak_held <= most_held(result)


@pytest.mark.parametrize("handles", ["own", "raw"])
def test_work_that_is_done_changes_nothing(handles: Handles, device: Device) -> None:
    (program,) = (each for each in PROGRAMS if each.name == "mixed/8x4")
    result = churn.run(program, device, handles, work_every=1)
    assert result.peak_held <= most_held(result)
