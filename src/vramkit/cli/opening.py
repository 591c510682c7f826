"""How the commands choose a driver."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vramkit.cli.errors import UsageError

if TYPE_CHECKING:
    from vramkit.driver import Driver


def open_driver(spec: str | None) -> Driver:
    """The driver of --driver or VRAMKIT_DRIVER, else NVIDIA's; a bad spec is a usage error."""
    from vramkit import driver

    try:
        return driver.open(spec)
    except ValueError as error:
        raise UsageError(str(error)) from error


def open_driver_or_simulate(spec: str | None) -> tuple[Driver, str | None]:
    """As open_driver, but the simulated GPU where nothing was chosen and there is no NVIDIA card.

    The second value says why it was taken, None where it was not.
    """
    from vramkit import driver

    if spec is not None or os.environ.get("VRAMKIT_DRIVER"):
        return open_driver(spec), None
    try:
        real = open_driver("cuda")
        if real.device_count() > 0:
            return real, None
        why = "NVIDIA's driver is here, but no card"
    except driver.DriverNotFoundError:
        why = "no NVIDIA driver on this machine"
    except driver.DriverError as error:
        why = f"NVIDIA's driver does not work here ({error})"
    return open_driver("sim"), why


def driver_spec(spec: str | None, driver: Driver) -> str:
    """Opens the same driver in another process."""
    return spec or os.environ.get("VRAMKIT_DRIVER") or driver.kind
