"""Builds programs against the installed headers and library, and runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import vramkit

PROGRAMS = Path(__file__).parent / "programs"
STRICT = ("-Wall", "-Wextra", "-pedantic", "-Werror")
C99 = ("-std=c99", *STRICT)
CPP17 = ("-std=c++17", *STRICT, "-pthread")


def compiler_of(source: Path) -> str:
    variable, *usual = ("CC", "cc", "gcc") if source.suffix == ".c" else ("CXX", "c++", "g++")
    for name in (os.environ.get(variable, ""), *usual):
        if name and (found := shutil.which(name)):
            return found
    pytest.skip(f"no compiler: set {variable}, or install {usual[-1]}")


def compiled(source: Path, *flags: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The compiler's run; the program is folder/program."""
    library = Path(vramkit.get_library())
    command = [compiler_of(source), *flags, str(source), "-I", vramkit.get_include(), str(library)]
    command += [f"-Wl,-rpath,{library.parent}", "-o", str(folder / "program")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def output_of(source: Path, *flags: str, folder: Path, **environment: str) -> list[str]:
    """Builds, runs on the driver that the environment names, and gives what was printed."""
    built = compiled(source, *flags, folder=folder)
    assert (built.returncode, built.stderr) == (0, "")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VRAMKIT_")}
    command = [str(folder / "program")]
    done = subprocess.run(
        command,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()
