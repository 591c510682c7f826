"""The gate on the host, for containers: the plugin's own files are in an image."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from vramkit.launch.gate import gate_library


def installed(folder: Path) -> Path:
    """A folder with the gate and what it loads, named by its contents; made where it is missing.

    Containers that run keep the folder of their version. Raises OSError.
    """
    source = gate_library().parent
    names = sorted(each.name for each in source.iterdir() if each.is_file())
    digest = hashlib.sha256()
    for name in names:
        digest.update((source / name).read_bytes())
    target = folder / f"gate-{digest.hexdigest()[:12]}"
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder, prefix=".gate-"))
    try:
        for name in names:
            shutil.copyfile(source / name, made / name)
            (made / name).chmod(0o755)
        made.chmod(0o755)
        os.replace(made, target)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not target.is_dir():  # else another process has made the same meanwhile
            raise
    return target


def prune(folder: Path, kept: Path) -> None:
    """Removes other versions, and what was being copied when a plugin was killed: no container uses
    any."""
    for each in (*folder.glob("gate-*"), *folder.glob(".gate-*")):
        if each != kept:
            shutil.rmtree(each, ignore_errors=True)
