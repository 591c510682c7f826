"""A Ray cluster on this machine: each node has a simulated card, a daemon and folders of its own.

When it ends nothing may be left: no process, no socket, no shared file.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20
SECONDS = 60.0
CAPACITY = 80 * MIB
RESERVE = 16 * MIB
OVERSUBSCRIPTION = 2.0
ANNOUNCED = 128
"""(80 MiB less 16) times 2."""


def until(condition: Callable[[], Any], describe: Callable[[], object] = str) -> Any:
    """Waits for what must happen, and gives what the condition was."""
    end = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < end, f"did not happen: {describe()}"
        time.sleep(0.02)
    return found


def processes_in(folder: Path) -> list[int]:
    """Processes that were started for this folder, and their children.

    Those that change their titles, as Ray's do, write over a part of their environment.
    """
    found = set[int]()
    parents = dict[int, int]()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            state, parent, *_ = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(process.name)
        if state in "ZX" or number == os.getpid():
            continue
        parents[number] = int(parent)
        if f"{folder}/".encode() in environment:
            found.add(number)
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


@contextmanager
def folder_of_ray() -> Iterator[Path]:
    """For a cluster, which looks here and nowhere else. It has ended when the block does."""
    # Not in pytest's folder: the paths of Ray's sockets are long.
    folder = Path(tempfile.mkdtemp(prefix="vk-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Where this user has a token, Ray would ask for it.
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("RAY_health_check_failure_threshold", "3")
        yield folder
    until(lambda: not processes_in(folder), lambda: processes_in(folder))
    shutil.rmtree(folder)


class Node:
    """The folders and the environment of one node."""

    def __init__(self, folder: Path, *, enforced: bool = True, socket: Path | None = None) -> None:
        self.folder = folder
        self.socket = socket or folder / "daemon.sock"
        (folder / "vramkit").mkdir(parents=True, mode=0o700)
        folder.chmod(0o700)
        settings = {
            "quantum": 0.05,
            "reserve": RESERVE,
            "oversubscription": OVERSUBSCRIPTION,
            "idle_exit": 0.5,
        }
        (folder / "vramkit" / "share.json").write_text(json.dumps(settings))
        self.card = f"{folder.parent.name}-{folder.name}"
        self.environment = {
            "XDG_RUNTIME_DIR": f"{folder}/",
            "XDG_CONFIG_HOME": f"{folder}/",
            "VRAMKIT_SOCKET": str(self.socket),
            "VRAMKIT_DRIVER": "sim",
            "VRAMKIT_SIM": f"card={self.card},clock=wall,capacity={CAPACITY},checker=off",
        }
        if enforced:
            from vramkit.integrations.ray import node_environment

            self.environment |= node_environment({})

    def left(self) -> list[str]:
        """What is there that should not be when the node is gone."""
        # A simulated card whose last process was killed stays, for the next process.
        allowed = {"vramkit", "clients.json", "daemon.lock", "daemon.log"}
        allowed |= {f"vramkit-sim-{os.getuid()}"}
        found = [str(each) for each in self.folder.iterdir() if each.name not in allowed]
        found += [str(each) for each in (self.folder / "vramkit").iterdir() if each.is_socket()]
        found += [each for each in os.listdir("/dev/shm") if self.card in each]
        return found + [f"process {each}" for each in processes_in(self.folder)]
