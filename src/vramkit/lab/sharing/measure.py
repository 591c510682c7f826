"""Runs one case, on the virtual clock of a simulated card made for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.lab.sharing.cases import PROGRAM, TURNS, Machine, SwitchCase, TurnsCase
from vramkit.lab.simulated import fresh_card

if TYPE_CHECKING:
    from vramkit.driver import Device
    from vramkit.lab.experiment import Lab

MIB = 1 << 20
GRANULE = 2 * MIB
SPANS = 1 << 18
"""More than a case has."""


def switch(case: SwitchCase, mode: str, lab: Lab) -> dict[str, float]:
    device = _card(lab, case.machine, PROGRAM, case.more)
    sim = lab.driver.sim
    assert sim is not None
    sim.start_timeline(SPANS)
    number = 1 if case.which == "first" else 2
    launch, begin, end = _core.sharing_switch(
        device, *_kernel(device), mode, PROGRAM, case.more, number, case.empty
    )
    moved = {"host to device": 0, "device to host": 0}
    for span in json.loads(sim.timeline()):
        if span["engine"] in moved and span["start_ns"] >= begin * 1e9 - 1:
            moved[span["engine"]] += span["bytes"]
    return {
        "switch": end - begin - launch,
        "bytes_in": moved["host to device"],
        "bytes_out": moved["device to host"],
    }


def turns(case: TurnsCase, mode: str, lab: Lab) -> dict[str, float]:
    device = _card(lab, case.machine, case.program, 0)
    launches, seconds = _core.sharing_turns(
        device, *_kernel(device), mode, case.program, 0, TURNS, case.quantum, case.window
    )
    used, _ = _core.sharing_bytes(case.program)
    computing = launches * used / case.machine.add_bytes_per_s
    return {"share": computing / seconds, "turn": seconds / TURNS}


def _card(lab: Lab, machine: Machine, program: int, more: int) -> Device:
    """It holds one program, one mapping, and `more`."""
    _, taken = _core.sharing_bytes(program)
    capacity = (taken + GRANULE + more) // MIB
    return fresh_card(lab, machine.profile, machine.changes, capacity=f"{capacity}MiB")


def _kernel(device: Device) -> tuple[int, int]:
    """The kernel that adds, and the blocks that fill the card."""
    return device.kernels.function("vk_add"), device.multiprocessors * 8
