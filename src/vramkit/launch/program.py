"""Finds a program before it is started; if there is none, suggests what was probably meant."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from vramkit.launch.errors import ProgramNotFoundError


def must_be_executable(program: Sequence[str]) -> None:
    """Raises ProgramNotFoundError, with a command line that would work where one is known."""
    if shutil.which(program[0]) is None:
        raise not_executable(program)


def not_executable(program: Sequence[str], reason: str = "") -> ProgramNotFoundError:
    """The error for a program that cannot be started; `reason` where the system gave one."""
    name, *arguments = program
    path = Path(name)
    if path.is_dir():
        return ProgramNotFoundError(f"{name}: is a folder")
    if not path.is_file():
        return ProgramNotFoundError(f"{name}: {reason or 'not found'}")
    if path.suffix == ".py":
        return ProgramNotFoundError(
            f"{name}: {reason or 'is a Python file and no executable'}",
            ["python", name, *arguments],
        )
    if os.access(path, os.X_OK) and "/" not in name:
        return ProgramNotFoundError(
            f"{name}: not found in PATH, but in this folder", [f"./{name}", *arguments]
        )
    return ProgramNotFoundError(f"{name}: {reason or 'may not be executed (chmod +x)'}")
