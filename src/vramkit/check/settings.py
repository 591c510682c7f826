"""The settings of the simulated GPU for a checked run, tried before the program starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from vramkit.check import read_settings
from vramkit.driver.opening import sim_folder

Stacks = Literal["python", "native", "off"]


class CheckError(ValueError):
    """The run cannot begin: a setting is wrong."""


class _Answer(msgspec.Struct):
    error: str = ""


def run_settings(text: str, *, stacks: str, profile: str | None) -> dict[str, str]:
    """`text`, the value of VRAMKIT_SIM, with the settings that a checked run needs."""
    settings = {"clock": "virtual", "profile": "h200"}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise CheckError(f"VRAMKIT_SIM has {part!r}; it is a list of key=value, with commas")
        settings[key.strip()] = value.strip()
    if profile is not None:
        settings["profile"] = profile
    settings["profile"] = _lasting(settings["profile"])
    settings.pop("reports", None)
    return settings | {"checker": "on", "stacks": stacks}


def settings_text(settings: Mapping[str, str]) -> str:
    for key, value in settings.items():
        if "," in value:
            raise CheckError(f"{key} is {value!r}; a setting cannot hold a comma")
    return ",".join(f"{key}={value}" for key, value in settings.items())


def must_be_usable(settings: Mapping[str, str]) -> None:
    """Raises CheckError. The program itself could only say that cuInit failed.

    The simulated GPU reads its settings in a child process, some 30 ms: the caller may use a
    driver, and a simulated GPU, of its own.
    """
    library = sim_folder() / "libcuda.so.1"
    # Isolated and without site-packages: only ctypes is needed, and the start is quick.
    command = [sys.executable, "-I", "-S", read_settings.__file__, str(library)]
    environment = {**os.environ, "VRAMKIT_SIM": settings_text(settings)}
    done = subprocess.run(command, env=environment, capture_output=True)
    if done.returncode != 0:
        reason = " ".join(done.stderr.decode(errors="replace").split()[-30:])
        raise CheckError(f"the simulated GPU {library} cannot be loaded: {reason}")
    if error := msgspec.json.decode(done.stdout, type=_Answer).error:
        raise CheckError(f"the simulated GPU cannot be set up: {error}")


def _lasting(profile: str) -> str:
    """A name stays a name; a path becomes absolute, since the program may change its folder."""
    if "/" in profile or profile.endswith(".toml"):
        return str(Path(profile).resolve())
    return profile
