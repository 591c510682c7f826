"""What the simulated GPU's settings say of the link, which no driver call tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramkit.doctor.facts import Link

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.driver.simulator import Simulator


def profile_name(driver: Driver) -> str | None:
    """None where the driver is a real one."""
    return None if driver.sim is None else driver.sim.settings().profile


def profile_link(sim: Simulator) -> Link:
    settings = sim.settings()
    return Link(
        generation=settings.link_generation,
        width=settings.link_width,
        max_generation=settings.link_generation,
        max_width=settings.link_width,
        source=f"profile {settings.profile}",
    )


def unknown_link(why: str) -> Link:
    return Link(generation=None, width=None, max_generation=None, max_width=None, source=why)
