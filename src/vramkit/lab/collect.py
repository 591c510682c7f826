"""What a report says of the machine, the card and the versions that took part."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from vramkit.lab.result import Machine, Report, Site

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.lab.experiment import Experiment
    from vramkit.lab.settings import Value

DATE = "%Y-%m-%dT%H:%M:%SZ"

PACKAGES = re.compile(
    r"vramkit|torch|triton|numpy|transformers|accelerate|ray|nvidia-cuda-runtime"
    r"|cuda-(core|bindings)|((lib)?(rmm|cudf)|cupy)(-cu(da)?\d+x?)?"
)
"""Distributions whose versions may change a figure."""


def new_report(
    experiment: Experiment,
    name: str,
    driver: Driver,
    device: int,
    *,
    settings: dict[str, Value],
    seed: int,
    repetitions: int,
    command: str = "",
) -> Report:
    """Without rows. The driver is to be set up as for the experiment; `name` is for find()."""
    return report_at(
        experiment,
        name,
        site_of(driver, device),
        settings=settings,
        seed=seed,
        repetitions=repetitions,
        command=command,
    )


def report_at(
    experiment: Experiment,
    name: str,
    site: Site,
    *,
    settings: dict[str, Value],
    seed: int,
    repetitions: int,
    command: str = "",
) -> Report:
    """As new_report(), of a card that may be elsewhere."""
    return Report(
        experiment=name,
        date=datetime.now(UTC).strftime(DATE),
        machine=site.machine,
        versions=site.versions,
        card=site.card,
        card_bytes=site.card_bytes,
        simulated=site.simulated,
        settings=settings,
        seed=seed,
        quantities=dict(experiment.quantities),
        repetitions=repetitions,
        command=command,
    )


def site_of(driver: Driver, device: int) -> Site:
    """The driver is to be set up as for the experiment."""
    chosen = driver.device(device)  # asked without a context, which would take memory
    return Site(
        node=os.environ.get("VRAMKIT_NODE") or socket.gethostname(),
        card=chosen.name,
        uuid=chosen.uuid,
        card_bytes=chosen.total_memory,
        simulated=None if driver.sim is None else driver.sim.settings().profile,
        machine=machine(),
        versions=versions(),
    )


def machine() -> Machine:
    """Asks the machine; starts nvidia-smi where it exists, for a moment."""
    gpu, _, driver = first_line(
        "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"
    ).partition(", ")
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        kernel=f"{platform.system()} {platform.release().partition('-')[0]}",
        gpu=gpu,
        nvidia_driver=driver,
        python=platform.python_version(),
    )


def versions() -> dict[str, str]:
    """vramkit first, then the installed packages that may take part, none of which is imported."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if PACKAGES.fullmatch(name):
            found.setdefault(name, distribution.version)  # the first on the path is the one used
    own = found.pop("vramkit", "")
    return {"vramkit": own, **dict(sorted(found.items()))}


def first_line(program: str, *arguments: str) -> str:
    """Of what a program prints; empty where it does not exist or fails."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        answer = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.partition("\n")[0].strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor()
