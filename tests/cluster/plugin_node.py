"""A node of Kubernetes for tests: a kubelet, a daemon and the plugin, in folders of the test."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from vramkit.integrations.kubernetes import units
from vramkit.integrations.kubernetes.agent import Agent, Places, Rhythm
from vramkit.share.connect import Controls, NoDaemonError

from .cdi_schema import problems
from .kubelet import Kubelet
from .nodes import MIB, until

A, B = (f"GPU-{letter * 8}-1111-2222-3333-444444444444" for letter in "ab")
SETTINGS = json.dumps({"reserve": 0, "idle_exit": 0.5})


class Node:
    """A kubelet, a daemon and the plugin, in folders of the test. Cards are what the test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubelet = Kubelet(folder / "k")
        self.socket = folder / "run" / "daemon.sock"
        self.places = Places(folder / "k", folder / "cdi", folder / "lib", self.socket)
        self.cards = [(A, 1024 * MIB), (B, 2048 * MIB)]
        self.problem: BaseException | None = None
        self._thread: threading.Thread | None = None

    def find_cards(self) -> list[tuple[str, int]]:
        if not self.cards:
            raise OSError("no driver")
        return self.cards

    def start(self, **options: Any) -> Agent:
        unit = units.Unit(options.pop("unit", 64))
        rhythm = Rhythm(0.02, 0.05, 0.05)
        self.agent = Agent(
            unit, places=self.places, rhythm=rhythm, find_cards=self.find_cards, **options
        )

        def run() -> None:
            try:
                self.agent.run()
            except Exception as error:
                self.problem = error

        self._thread = threading.Thread(target=run)
        self._thread.start()
        return self.agent

    def stop(self) -> None:
        if self._thread is not None:
            self.agent.stop()
            self._thread.join(30)
            assert not self._thread.is_alive()
            self._thread = None

    def specs(self) -> dict[str, Any]:
        """By the qualified name of the device."""
        found = {}
        for path in self.places.cdi.glob("*.json"):
            spec = json.loads(path.read_text())
            assert problems(spec) == []
            for each in spec["devices"]:
                found[f"{spec['kind']}={each['name']}"] = each["containerEdits"]
        return found

    def stop_daemon(self) -> None:
        try:
            with Controls(self.socket) as controls:
                controls.ask("stop")
        except NoDaemonError:
            return
        until(lambda: not self.socket.exists())
