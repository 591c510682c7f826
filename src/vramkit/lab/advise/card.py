"""The card that advice is for: of a profile, with its memory or another amount."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from vramkit.driver import OutOfMemoryError
from vramkit.lab.advise.rules import TRUSTED, Card, Pooled
from vramkit.lab.clock import clock_of
from vramkit.lab.player import play
from vramkit.lab.subjects import SUBJECTS, Room
from vramkit.lab.traces.programs import as_program
from vramkit.report.units import bytes_text

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.lab.program import Program
    from vramkit.lab.traces import Trace

ROOM = 4
"""Times what is in use: as much as the simulated card has when the pool's memory is counted."""
SMALLEST_CARD = 64 << 20
SMALLEST_LIMIT = 2 << 20
"""Of a pool."""
LARGEST_CARD = 512 << 30
"""A pool reserves addresses for four cards."""


def card_of(driver: Driver, profile: str, nbytes: int | None, block: int) -> Card:
    """What a call costs, for blocks of so many bytes, is the profile's: measured on such a card,
    or set by hand. Raises ValueError for a profile that is not there, and for a size."""
    assert driver.sim is not None
    if nbytes is not None and not SMALLEST_CARD <= nbytes <= LARGEST_CARD:
        raise ValueError(
            f"a card of {bytes_text(nbytes)}; it may have {bytes_text(SMALLEST_CARD)} to "
            f"{bytes_text(LARGEST_CARD)}"
        )
    driver.sim.reset(profile, data=False, checker=False, capacity=LARGEST_CARD)
    settings = driver.sim.settings()
    device, clock = driver.device(), clock_of(driver)
    device.synchronize()
    begun = clock.now()
    memory = device.alloc(block)
    allocated = clock.now()
    memory.close()
    freed = clock.now()
    total = settings.profile_memory if nbytes is None else nbytes
    return Card(
        f"a card of {bytes_text(total)}",
        total,
        settings.host_to_device_bytes_per_s,
        (allocated - begun) * 1e-9,
        (freed - allocated) * 1e-9,
    )


def pooled(driver: Driver, profile: str, trace: Trace, room: int) -> Pooled:
    """What vramkit's pool holds for the allocations of a trace, on a card that has enough; and if
    that is more than the room for sure, whether it comes to the end with less.

    Raises OutOfMemoryError where the program needs more than any card has.
    """
    program = as_program(trace, paced=True)
    held = _held(driver, profile, program)
    if held * (1 + TRUSTED) > room:
        for limit in (round(room / (1 + TRUSTED)), room):
            if limit < max(trace.peak_in_use, SMALLEST_LIMIT):
                continue
            with suppress(OutOfMemoryError):
                return Pooled(held, _held(driver, profile, program, limit))
    return Pooled(held)


def _held(driver: Driver, profile: str, program: Program, limit: int | None = None) -> int:
    assert driver.sim is not None
    capacity = min(max(ROOM * program.peak_in_use, SMALLEST_CARD), LARGEST_CARD)
    driver.sim.reset(profile, data=False, checker=False, capacity=capacity)
    device = driver.device()
    with SUBJECTS["pool"].open(device, Room(program.peak_in_use, limit=limit)) as allocator:
        played = play(program, allocator, device, measure="memory")
    assert played.peak_held is not None
    return played.peak_held
