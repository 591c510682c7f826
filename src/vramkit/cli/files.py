"""Files that the commands write."""

from __future__ import annotations

import os
from pathlib import Path

from vramkit.cli.errors import UsageError


def must_be_writable(option: str, path: Path) -> None:
    """Checked before anything runs, so that no run is lost to a mistyped path."""
    if path.is_dir():
        raise UsageError(f"{option} {path}: that is a folder")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{option} {path}: may not be written")


def must_be_replaceable(option: str, path: Path) -> None:
    """For a file that is written again and again, each time in one step (a new one, renamed)."""
    must_be_writable(option, path)
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise UsageError(f"{option} {path}: that is no file")
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"{option} {path}: no file may be made in {target.parent}")
