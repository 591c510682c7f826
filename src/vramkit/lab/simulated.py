"""A simulated card of an experiment's own: a profile with other rates, fresh for each case."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
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
    with tempfile.TemporaryDirectory() as folder:
        name = _file(profile, changes, Path(folder)) if changes else profile
        sim.apply({"profile": name, **settings})
    return lab.driver.device()


def _file(profile: str, changes: Changes, folder: Path) -> str:
    lines = [f'name = "{profile}-changed"', f'extends = "{profile}"']
    for section, values in changes.items():
        lines += [f"[{section}]", *(f"{name} = {value!r}" for name, value in values.items())]
    path = folder / "changed.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def missing(driver: Driver) -> str:
    """Why a subject that needs the simulated GPU cannot take part; empty: it can."""
    return "" if driver.simulated else NEEDS_THE_SIMULATOR
