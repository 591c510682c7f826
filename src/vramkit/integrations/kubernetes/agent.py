"""The plugin as a process of a node: serves, registers, looks after health, cleans up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import grpc

from vramkit.cluster.cards import Card, Probe, announcing
from vramkit.integrations.kubernetes import libraries
from vramkit.integrations.kubernetes.api import handlers
from vramkit.integrations.kubernetes.cdi import (
    Edits,
    Specs,
    device_name,
    parse_device_name,
    qualified,
)
from vramkit.integrations.kubernetes.kubelet import (
    KubeletError,
    allocations,
    answers,
    identity,
    register,
)
from vramkit.integrations.kubernetes.plugin import DevicePlugin
from vramkit.integrations.kubernetes.units import Unit, card_tag
from vramkit.launch.gate import NAMES
from vramkit.share import paths
from vramkit.share.connect import Controls, DaemonError, NoDaemonError
from vramkit.share.keeper import Keeper
from vramkit.share.run import RunOptions, variables
from vramkit.share.settings import SettingError, ShareSettings

logger = logging.getLogger(__name__)

Nvidia = Literal["runtime", "cdi", "none"]

# Where containers find the gate and the daemon.
GATE_INSIDE = Path("/usr/local/vramkit/gate")
SOCKET_INSIDE = Path("/run/vramkit") / paths.SOCKET

# So long the plugin waits for a daemon that starts beside it.
FIRST_SECONDS = 5.0

# A pod sets these itself, in its manifest.
LEFT_TO_PODS = ("VRAMKIT_SHARE_WEIGHT", "VRAMKIT_SHARE_PRIORITY")


@dataclass(frozen=True)
class Places:
    """Of the host; the plugin's container has them at the same paths."""

    kubelet: Path = Path("/var/lib/kubelet")
    cdi: Path = Path("/var/run/cdi")
    libraries: Path = Path("/var/lib/vramkit")
    socket: Path = field(default_factory=paths.chosen_socket)

    @property
    def plugins(self) -> Path:
        return self.kubelet / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        return self.kubelet / "pod-resources" / "kubelet.sock"


@dataclass(frozen=True)
class Rhythm:
    """Seconds between two looks at sockets, at cards, and at what pods have."""

    sockets: float = 1.0
    cards: float = 30.0
    pods: float = 60.0


class Agent:
    def __init__(
        self,
        unit: Unit,
        *,
        nvidia: Nvidia = "runtime",
        oversubscription: float | None = None,
        places: Places | None = None,
        rhythm: Rhythm | None = None,
        find_cards: Callable[[], list[tuple[str, int]]] | None = None,
    ) -> None:
        """`find_cards`: UUID and bytes of each card that works now; raises OSError."""
        self.unit, self.nvidia, self.oversubscription = unit, nvidia, oversubscription
        self.places, self.rhythm = places or Places(), rhythm or Rhythm()
        self._find_cards = find_cards or Probe()
        self._specs = Specs(self.places.cdi)
        self._keeper = Keeper(self.places.socket)
        self._gate = libraries.installed(self.places.libraries)
        self._plugin = DevicePlugin(unit, self._inject)
        self._endpoint = f"{unit.resource.replace('/', '-')}.sock"
        self._server: Any = None
        self._kubelet: tuple[int, int] | None = None
        self._own: tuple[int, int] | None = None
        """What the socket is that this process has made."""
        self._awaited = False
        """It was said that the kubelet does not answer."""
        self._with_daemon = False
        self._told = ShareSettings()
        self._stopped = False

    @property
    def socket(self) -> Path:
        return self.places.plugins / self._endpoint

    def run(self) -> None:
        """Until `stop`. Raises UnitError, KubeletError, SettingError or OSError."""
        self._keeper.watch()
        self._keeper.connected.wait(FIRST_SECONDS)
        self._write_specs_again()
        self._look_at_cards()
        looked_at_cards = looked_at_pods = time.monotonic()
        try:
            while True:
                time.sleep(self.rhythm.sockets)
                if self._stopped:
                    break
                now = time.monotonic()
                changed = self._with_daemon != self._keeper.connected.is_set()
                if changed or now - looked_at_cards >= self.rhythm.cards:
                    looked_at_cards = now
                    self._look_at_cards()
                if now - looked_at_pods >= self.rhythm.pods:
                    looked_at_pods = now
                    self._clean_up()
                self._look_at_sockets()
        finally:
            self._keeper.stop()
            self._stop_serving()
            self._clean_up()

    def stop(self) -> None:
        """Returns at once. For handlers of signals: it takes no lock, which the thread in run()
        could hold."""
        self._stopped = True

    # The kubelet

    def _look_at_sockets(self) -> None:
        """A kubelet that starts removes all sockets of plugins, and knows none of them. One that
        has ended its stream takes the plugin for gone."""
        kubelet = self.places.plugins / "kubelet.sock"
        found = identity(kubelet)
        serves = self._server is not None and identity(self.socket) == self._own
        if found is None:
            return
        if serves and found == self._kubelet and not self._plugin.stream_was_lost():
            return
        if identity(self.socket) != self._own and answers(self.socket):
            raise KubeletError(
                f"another plugin serves {self.socket}; a node has one, so end that one first"
            )
        self._stop_serving()
        self._serve()
        if register(kubelet, self._endpoint, self.unit.resource):
            self._kubelet, self._awaited = found, False
            logger.info("registered %s with the kubelet", self.unit.resource)
        elif not self._awaited:
            self._awaited = True
            logger.warning("the kubelet does not answer at %s", kubelet)

    def _serve(self) -> None:
        self.socket.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(8, thread_name_prefix="kubelet"))
        server.add_generic_rpc_handlers([handlers("v1beta1.DevicePlugin", self._plugin)])
        server.add_insecure_port(f"unix://{self.socket}")
        server.start()
        self._server, self._own = server, identity(self.socket)

    def _stop_serving(self) -> None:
        if self._server is not None:
            self._plugin.end_streams()
            self._server.stop(grace=1.0).wait()
            self._server = None
            self._kubelet = None
        if self._own is not None and identity(self.socket) == self._own:
            self.socket.unlink(missing_ok=True)
        self._own = None

    # Cards

    def _settings(self) -> ShareSettings:
        """Those of the daemon; where it is gone, those that it had."""
        with suppress(DaemonError, NoDaemonError), Controls(self.places.socket) as controls:
            self._told = controls.settings()
        return announcing(self._told, self.oversubscription)

    def _look_at_cards(self) -> None:
        """Without a daemon no limit is kept to: then no card is fit for another pod."""
        try:
            found = self._find_cards()
        except OSError as error:
            logger.error("the cards cannot be asked: %s", error)
            found = []
        settings = self._settings()
        cards = [Card.of(uuid, total, settings) for uuid, total in found]
        self._with_daemon = self._keeper.connected.is_set()
        self._plugin.update(cards, [card.uuid for card in cards] if self._with_daemon else [])

    # Containers

    def _inject(self, card: Card, nbytes: int) -> tuple[dict[str, str], list[str]]:
        name = device_name(card.uuid, nbytes)
        self._specs.write(name, self._edits(nbytes))
        names, added = [qualified(name)], {}
        if self.nvidia == "cdi":
            names.append(f"nvidia.com/gpu={card.uuid}")
        elif self.nvidia == "runtime":
            added["NVIDIA_VISIBLE_DEVICES"] = card.uuid
        return added, names

    def _edits(self, nbytes: int) -> Edits:
        told = variables(RunOptions(memory=nbytes), SOCKET_INSIDE, self._settings())
        for name in LEFT_TO_PODS:
            del told[name]
        told["LD_PRELOAD"] = str(GATE_INSIDE / NAMES[0])
        folders = {GATE_INSIDE: self._gate, SOCKET_INSIDE.parent: self.places.socket.parent}
        return Edits(told, folders)

    def _write_specs_again(self) -> None:
        """Those of a plugin before this one, with the paths and settings of today."""
        for name in self._specs.names():
            parsed = parse_device_name(name)
            if parsed is not None:
                self._specs.write(name, self._edits(parsed[1]))

    def _clean_up(self) -> None:
        found = allocations(self.places.pod_resources)
        if found is None:
            logger.info("the kubelet does not say what pods have: nothing is removed")
            return

        def is_used(name: str) -> bool:
            parsed = parse_device_name(name)
            return parsed is not None and (card_tag(parsed[0]), parsed[1]) in found

        try:
            for name in self._specs.prune(is_used):
                logger.info("removed the specification of %s", name)
            if not found and not self._specs.names():
                libraries.prune(self.places.libraries, self._gate)
        except (OSError, SettingError) as error:
            logger.warning("nothing could be cleaned up: %s", error)
