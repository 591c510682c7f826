"""A node of a Ray cluster: what it announces, and how it is started."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec

from vramkit.cluster.cards import MIB, Card, cards_here, host_shortage, settings_here

logger = logging.getLogger(__name__)

RESOURCE = "vram_mib"
"""The memory of a node's cards in MiB: a custom resource of Ray."""

PLUGIN = "vramkit.integrations.ray.gate.Gate"
PLUGINS_VARIABLE = "RAY_RUNTIME_ENV_PLUGINS"


def node_resources(oversubscription: float | None = None) -> dict[str, int]:
    """What `ray start --resources` takes: the memory of this machine's cards.

    The factor is that of `vramkit config oversubscription`, unless given. Raises DriverError,
    DriverNotFoundError or SettingError.
    """
    cards = cards_here(settings_here(oversubscription))
    if shortage := host_shortage(cards):
        logger.warning("%s", shortage)
    return resources_of(cards)


def resources_of(cards: Iterable[Card]) -> dict[str, int]:
    return {RESOURCE: sum(card.announced // MIB for card in cards)}


def node_environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the environment of `ray start` needs, so that the node understands `options()`."""
    plugins = json.loads(base.get(PLUGINS_VARIABLE) or "[]")
    if not any(each.get("class") == PLUGIN for each in plugins):
        plugins.append({"class": PLUGIN})
    return {PLUGINS_VARIABLE: json.dumps(plugins)}


def understands_options(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a node with this environment puts workers under the gate."""
    return PLUGIN in environment.get(PLUGINS_VARIABLE, "")


def start_node(
    address: str | None = None,
    *,
    oversubscription: float | None = None,
    resources: Mapping[str, float] | None = None,
    arguments: Sequence[str] = (),
) -> None:
    """Starts Ray on this machine, with the memory of its cards as a resource.

    `address`: of the head node to join; without one this is the head. `resources`: others to
    announce beside `vram_mib`. `arguments`: of `ray start`, as they are. Raises RuntimeError where
    Ray does not start.
    """
    command = start_command(
        address, oversubscription=oversubscription, resources=resources, arguments=arguments
    )
    done = subprocess.run(command, env={**os.environ, **node_environment()}, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`ray start` ended with status {done.returncode}; it says why above")


def start_command(
    address: str | None = None,
    *,
    oversubscription: float | None = None,
    resources: Mapping[str, float] | None = None,
    arguments: Sequence[str] = (),
) -> list[str]:
    """The command of `start_node`, to be run in `node_environment`."""
    if find_spec("ray") is None:
        raise ModuleNotFoundError("Ray is not installed; install vramkit[ray]", name="ray")
    if any(each.split("=")[0] in ("--resources", "--address", "--head") for each in arguments):
        raise ValueError(
            f"arguments are {list(arguments)}; give resources= and address= for --resources, "
            "--address and --head"
        )
    announced = {**(resources or {}), **node_resources(oversubscription)}
    place = ["--head"] if address is None else [f"--address={address}"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *place]
    return [*command, f"--resources={json.dumps(announced)}", *arguments]
