"""Specifications of the Container Device Interface: what a container gets with its memory.

One file for each card and amount, which any number of containers may refer to. The kubelet keeps
the name for as long as a pod lives, and a container that starts again needs the file again: so
files are removed when no pod has the amount any more, not when the plugin ends.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vramkit.cluster.cards import MIB
from vramkit.integrations.kubernetes.units import DOMAIN

KIND = f"{DOMAIN}/vram"
VERSION = "0.3.0"
"""The first that has all that is used here."""

PREFIX = f"{DOMAIN}-vram_"
# Nobody lists a pod in the moment between its allocation and its start.
YOUNG_SECONDS = 120.0


@dataclass(frozen=True)
class Edits:
    """What is put into a container: variables, and folders of the host, read-only."""

    variables: Mapping[str, str]
    folders: Mapping[Path, Path]
    """By their path in the container."""

    def as_json(self) -> dict[str, object]:
        return {
            "env": [f"{name}={value}" for name, value in self.variables.items()],
            "mounts": [
                {
                    "hostPath": str(host),
                    "containerPath": str(inside),
                    "options": ["ro", "nosuid", "nodev", "rbind"],
                }
                for inside, host in self.folders.items()
            ],
        }


def device_name(uuid: str, nbytes: int) -> str:
    return f"{uuid}-{nbytes // MIB}mib"


def parse_device_name(name: str) -> tuple[str, int] | None:
    """The card and the bytes; None: not one of ours."""
    match = re.fullmatch(r"(.+)-(\d+)mib", name)
    return None if match is None else (match[1], int(match[2]) * MIB)


def qualified(name: str) -> str:
    return f"{KIND}={name}"


class Specs:
    """The files of one folder. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Between the look at a file's age and its end it could be written for another pod.
        self._lock = threading.Lock()

    def write(self, name: str, edits: Edits) -> Path:
        """Whole or not at all: a container runtime reads the folder at any time."""
        spec = {
            "cdiVersion": VERSION,
            "kind": KIND,
            "devices": [{"name": name, "containerEdits": edits.as_json()}],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        # Runtimes read .json and .yaml only: not the file that is being written.
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=f".{PREFIX}")
        path = self.folder / f"{PREFIX}{name}.json"
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(spec, file, indent=2)
            os.chmod(temporary, 0o644)
            with self._lock:
                os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
        return path

    def names(self) -> list[str]:
        found = self.folder.glob(f"{PREFIX}*.json")
        return sorted(path.name.removeprefix(PREFIX).removesuffix(".json") for path in found)

    def prune(
        self, is_used: Callable[[str], bool], young_seconds: float = YOUNG_SECONDS
    ) -> list[str]:
        """Removes the files of amounts that no pod has. Returns their names.

        Also what a plugin was writing when it was killed.
        """
        for path in self.folder.glob(f".{PREFIX}*"):
            self._remove(path, young_seconds)
        unused = [name for name in self.names() if not is_used(name)]
        return [
            name
            for name in unused
            if self._remove(self.folder / f"{PREFIX}{name}.json", young_seconds)
        ]

    def _remove(self, path: Path, young_seconds: float) -> bool:
        """Unless it is young, or gone."""
        with self._lock, suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime >= young_seconds:
                path.unlink()
                return True
        return False
