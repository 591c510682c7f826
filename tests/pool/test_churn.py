"""Programs whose threads and streams come and go: what they leave serves those that follow."""

from __future__ import annotations

import churn
import pytest
from churn import HANDLES, PROGRAMS, Handles, Program

from vramkit.driver import Device

from .engine_goals import NOT_YET

pytestmark = [
    pytest.mark.sim_only,
    pytest.mark.sim(data=False, checker=False, capacity="140GiB"),
]


@NOT_YET
@pytest.mark.parametrize("handles", HANDLES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_held_is_bounded_by_what_is_in_use(
    program: Program, handles: Handles, device: Device
) -> None:
    result = churn.run(program, device, handles)
    assert result.peak_held <= result.bound
