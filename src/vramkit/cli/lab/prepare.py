"""What an experiment is measured on: a card of this machine, or those of a cluster."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vramkit.cli.errors import CommandError, UsageError
from vramkit.cli.lab.options import Options

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.lab.experiment import Experiment
    from vramkit.lab.remote import Elsewhere
    from vramkit.lab.result import Site
    from vramkit.lab.settings import Value
    from vramkit.sweep import Place

NOTHING = 1
PATIENCE_SECONDS = 10.0
"""Until it is said that a run waits for its first card."""


@dataclass(frozen=True)
class Found:
    """`subjects` has why each cannot take part there, and an empty text for who can."""

    site: Site
    driver: str
    subjects: dict[str, str]
    named: str | None
    """The driver as the command names it, that measures the same again."""
    why_simulated: str | None = None
    """Where nobody asked for it."""
    elsewhere: Elsewhere | None = None


def here(experiment: Experiment, options: Options, settings: dict[str, Value]) -> Found:
    from vramkit.cli.opening import driver_spec, open_driver_or_simulate
    from vramkit.driver.opening import reset_simulator
    from vramkit.lab.collect import site_of

    driver, why_simulated = open_driver_or_simulate(options.driver)
    spec = driver_spec(options.driver, driver)
    if driver.sim is not None:
        reset_simulator(driver, spec, experiment.simulator(settings))
    _check_device(driver, options.device)
    subjects = experiment.subjects(driver)
    return Found(site_of(driver, options.device), spec, subjects, spec, why_simulated)


def _check_device(driver: Driver, device: int) -> None:
    count = driver.device_count()
    if device >= count:
        raise UsageError(f"--device is {device}; it may be 0 to {count - 1}")


def there(name: str, driver: str | None, settings: dict[str, Value], place: Place) -> Found:
    from vramkit.lab.remote import Chosen, Elsewhere, describe
    from vramkit.sweep import PlaceError

    chosen = Chosen(driver, os.environ.get("VRAMKIT_SIM", ""))
    try:
        described = describe(name, settings, chosen, place, Waiting())
    except PlaceError as error:
        raise CommandError(str(error), NOTHING) from error
    elsewhere = Elsewhere(place, chosen, described.site.simulated)
    return Found(described.site, described.driver, described.subjects, driver, elsewhere=elsewhere)


@dataclass
class Waiting:
    """Says once that no card is free, where the first answer takes long: the cluster's other users
    may have them for hours, and nothing else is shown before."""

    clock: Callable[[], float] = time.monotonic
    _until: float = math.inf

    def __call__(self) -> None:
        now = self.clock()
        if self._until == math.inf:
            self._until = now + PATIENCE_SECONDS
        if now > self._until:
            self._until = math.nan
            print("vramkit: waiting for a card of the cluster; others have them", file=sys.stderr)


def given_driver(options: Options) -> str | None:
    """With --on: that of the command, else each node decides. A file is told by its whole path."""
    spec = options.driver or os.environ.get("VRAMKIT_DRIVER") or None
    if spec is None:
        return None
    from vramkit.driver.opening import parse_spec

    kind, profile = parse_spec(spec)
    if profile is not None and ("/" in profile or profile.endswith(".toml")):
        return f"{kind}:{Path(profile).resolve()}"
    return spec


@contextmanager
def connected_place(options: Options, driver: str | None) -> Iterator[Place | None]:
    """Of --on: cards, or CPUs where each can simulate one."""
    if options.on is None:
        yield None
        return
    from vramkit.cli.places import ray_place

    if options.device:
        raise UsageError("--device is for this machine; with --on the cluster's cards are used")
    simulated = driver is not None and driver.startswith("sim")
    with ray_place(options.on, cards=not simulated) as place:
        yield place
