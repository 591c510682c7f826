"""Whether a program fits on a card of some size: tried on the simulated GPU.

It counts memory as a card does, so what fits there fits on such a card, for the allocators that can
run on it. One that must be given a size gets all of the card's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramkit.driver import OutOfMemoryError
from vramkit.lab.experiment import Unmeasured
from vramkit.lab.player import play
from vramkit.lab.subjects import Room, Subject

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.lab.program import Program

GRAIN = 16 << 20
"""The smallest card is found to this many bytes, or to 1/256 of what is in use. A driver gives no
slab of just all that is free where that is no multiple of its own units."""
LARGEST_CARD = 512 << 30
"""A pool reserves addresses for four cards."""


@dataclass(frozen=True)
class Cards:
    """Cards of any size, of one profile. `driver` is a simulated GPU."""

    driver: Driver
    profile: str

    @staticmethod
    def beside(driver: Driver) -> Cards:
        """The simulated GPU that the driver is, else another one in this process."""
        from vramkit import driver as drivers

        simulated = driver if driver.sim is not None else drivers.open("sim")
        assert simulated.sim is not None
        return Cards(simulated, simulated.sim.settings().profile)

    def run(self, program: Program, subject: Subject, nbytes: int) -> None:
        """Raises OutOfMemoryError where the program does not fit, and Unmeasured."""
        assert self.driver.sim is not None
        if why := subject.missing(self.driver):
            raise Unmeasured(f"cards of other sizes are simulated ones: {why}")
        self.driver.sim.reset(self.profile, data=False, checker=False, capacity=nbytes)
        device = self.driver.device()
        size = device.memory_info().free // GRAIN * GRAIN if subject.needs_size else None
        with subject.open(device, Room(program.peak_in_use, size=size)) as allocator:
            play(program, allocator, device)

    def fits(self, program: Program, subject: Subject, nbytes: int) -> bool:
        try:
            self.run(program, subject, nbytes)
        except OutOfMemoryError:
            return False
        return True

    def smallest(self, program: Program, subject: Subject) -> int:
        """The card on which it fits, when the next smaller one that was tried is too small.

        Found by bisection. Raises OutOfMemoryError if it does not fit on the largest one.
        """
        grain = max(1, (program.peak_in_use >> 8) // GRAIN) * GRAIN
        most = LARGEST_CARD // grain
        too_small = (program.peak_in_use - 1) // grain
        enough = min(too_small + max(1, too_small // 16), most)
        while not self.fits(program, subject, enough * grain):
            if enough == most:
                self.run(program, subject, most * grain)  # raises its error again
            too_small, enough = enough, min(2 * enough, most)
        while enough - too_small > 1:
            middle = (enough + too_small) // 2
            if self.fits(program, subject, middle * grain):
                enough = middle
            else:
                too_small = middle
        return enough * grain
