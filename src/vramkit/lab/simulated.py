"""A simulated card of an experiment's own: a profile with other rates, fresh for each case."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver
    from vramkit.lab.experiment import Lab

Changes = Mapping[str, Mapping[str, float]]
"""Of a profile, by section: the sections [link], [managed] and so on of its file."""

NEEDS_THE_SIMULATOR = "runs on the simulated GPU, in exact virtual time: --driver sim"


def fresh_card(lab: Lab, profile: str, changes: Changes, **settings: object) -> Device:
    """Resets the simulated GPU to a profile, with changes. Data is not kept: sizes and times are.

    Whatever VRAMKIT_SIM says: the figures of a case are the same everywhere.
    """
    sim = lab.driver.sim
    if sim is None:
        raise ValueError(f"this case {NEEDS_THE_SIMULATOR}")
    settings = {"data": "off", "checker": "off", **settings}
    with _changed(profile, changes) as path:
        sim.apply({"profile": path, **settings})
    return lab.driver.device()


@contextmanager
def _changed(profile: str, changes: Changes) -> Iterator[str]:
    """The profile's name, or the path of a file. It has no name on disk: cases are many, and Ctrl-C
    in the middle of one leaves nothing."""
    if not changes:
        yield profile
        return
    lines = [f'name = "{profile}-changed"', f'extends = "{profile}"']
    for section, values in changes.items():
        lines += [f"[{section}]", *(f"{name} = {value!r}" for name, value in values.items())]
    with open(os.memfd_create("changed.toml"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def missing(driver: Driver) -> str:
    """Why a subject that needs the simulated GPU cannot take part; empty: it can."""
    return "" if driver.simulated else NEEDS_THE_SIMULATOR
