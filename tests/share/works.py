"""Programs of tests/share/programs as processes: natively, or with their memory shared."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from soak import rounds

from vramkit.driver.opening import sim_folder
from vramkit.launch.gate import gate_launch

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "src" / "vramkit" / "driver" / "kernels.ptx"
SECONDS = rounds(60, 1800)
"""Far above what any program here takes: a program that hangs fails its test."""


def build_works(folder: Path, name: str = "works") -> Path:
    """A program of tests/share/programs, by its name."""
    # Nothing in it refers to the driver by name.
    driver = ["-Wl,--no-as-needed", str(_simulated_driver()), "-ldl", "-lpthread"]
    return _build(name, folder / name, *driver)


def build_exporting_driver(folder: Path) -> Path:
    """programs/exporting_driver.cpp, for VRAMKIT_GATE_DRIVER."""
    beneath = _simulated_driver()
    library = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f'-DSIMULATED="{beneath}"']
    filters = f"-Wl,--auxiliary,{beneath}"
    return _build("exporting_driver", folder / "libcuda.so.1", *library, filters, "-ldl")


def _simulated_driver() -> Path:
    return sim_folder() / "libcuda.so.1"


def _build(name: str, output: Path, *options: str) -> Path:
    found = (shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++") if name)
    compiler = next(filter(None, found), None)
    if compiler is None:
        pytest.skip("no C++ compiler: set CXX, or install g++")
    source = ROOT / "tests" / "share" / "programs" / f"{name}.cpp"
    flags = ["-w", "-std=c++20", f"-I{ROOT / 'native'}"]
    command = [compiler, *flags, str(source), *options, "-o", str(output)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return output


def bare_environment() -> dict[str, str]:
    """Without anything of ours but the places of the test."""
    kept = {"XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "VRAMKIT_SOCKET"}
    ours = ("VRAMKIT_", "LD_", "XDG_")
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(ours)
    }


def simulated(settings: str) -> dict[str, str]:
    """The environment of a program that is linked with the driver."""
    return bare_environment() | {
        "KERNELS": str(KERNELS),
        "LD_LIBRARY_PATH": str(sim_folder()),
        "VRAMKIT_DRIVER": "sim",
        "VRAMKIT_SIM": settings,
    }


@dataclass(frozen=True)
class Done:
    status: int
    output: str
    errors: str
    log: str

    @property
    def swapped(self) -> tuple[int, int]:
        """Bytes that went out and came in, as last logged by the self-test."""
        found = re.findall(r"swapped \d+ times, (\d+) bytes out, (\d+) bytes in", self.log)
        return (int(found[-1][0]), int(found[-1][1])) if found else (0, 0)


def run_natively(
    words: list[str], folder: Path, settings: str, relies_on: tuple[str, ...] = ()
) -> Done:
    environment = simulated(f"{settings},reports={folder / 'reports.json'}")
    return _run(words, folder, environment, relies_on)


def run_shared_alone(
    words: list[str],
    folder: Path,
    settings: str,
    variables: Mapping[str, str],
    relies_on: tuple[str, ...] = (),
) -> Done:
    """Under the gate, which keeps its memory, and without any daemon."""
    told = {"VRAMKIT_SHARE": "swap", "VRAMKIT_SHARE_LOG": str(folder / "log"), **variables}
    environment = simulated(f"{settings},reports={folder / 'reports.json'}")
    with gate_launch(words, told) as launch:
        return _run(words, folder, launch.environment(environment), relies_on)


def _run(
    words: list[str], folder: Path, environment: dict[str, str], relies_on: tuple[str, ...]
) -> Done:
    """The checker has nothing to say, but what the program is known to rely on."""
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    for written in folder.glob("reports.json.*"):
        reports = json.loads(written.read_text(encoding="utf-8"))["reports"]
        reports = [each for each in reports if each["kind"] not in relies_on]
        assert reports == [], f"{words}: {reports}"
    log = folder / "log"
    said = log.read_text(encoding="utf-8") if log.exists() else ""
    return Done(done.returncode, done.stdout, done.stderr, said)
