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
