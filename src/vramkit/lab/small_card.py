"""A card on which little memory is left, for cases in which that is the question."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vramkit.lab.experiment import Lab, Unmeasured

if TYPE_CHECKING:
    from vramkit.driver import Simulator

GRAIN = 2 << 20
"""What a card gives memory out in."""


@contextmanager
def small_card(lab: Lab, nbytes: int) -> Iterator[None]:
    """Inside, all allocators together can have `nbytes` of the card.

    A simulated card is reset to that capacity; on a real one, the rest of its free memory is taken
    for that time, so that other programs on the card would run out of it. Raises Unmeasured where
    the card has less.
    """
    nbytes = -(-nbytes // GRAIN) * GRAIN
    if lab.driver.sim is not None:
        _resize(lab.driver.sim, nbytes)
        yield
        return
    free = lab.device.memory_info().free
    if free < nbytes:
        raise Unmeasured(f"the card has {free >> 20} MiB free; this case needs {nbytes >> 20} MiB")
    if free - nbytes < GRAIN:
        yield
        return
    with lab.device.alloc((free - nbytes) // GRAIN * GRAIN):
        yield


def _resize(simulator: Simulator, nbytes: int) -> None:
    now = simulator.settings()
    simulator.apply(
        {
            "profile": now.profile,
            "clock": now.clock,
            "checker": "on" if now.checker else "off",
            "data": "on" if now.data else "off",
            "devices": now.devices,
            "capacity": nbytes,
        }
    )
