"""What runs on the cards of all nodes of a Ray cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from vramkit.cluster.status import NodeStatus
from vramkit.integrations._frameworks import imported
from vramkit.integrations.ray.node import RESOURCE, understands_options
from vramkit.share import paths
from vramkit.share.connect import Controls, DaemonError, NoDaemonError

SECONDS = 10.0


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Connects this process with a running cluster, unless it is, and undoes that.

    `address`: HOST:PORT, or ray://HOST:PORT of Ray's client; without one that of RAY_ADDRESS, else
    the Ray that runs on this machine. Raises ConnectionError where there is none.
    """
    ray = imported("ray", "vramkit[ray]")
    if ray.is_initialized():
        yield
        return
    if address is None:
        address = os.environ.get("RAY_ADDRESS") or "auto"
    _must_answer(address)
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


def _must_answer(address: str) -> None:
    """Ray itself tries for minutes, and ends the process. Raises ConnectionError."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"nobody answers at {address} ({getattr(error, 'strerror', None) or error}); give the "
            "address of the cluster's head, as `ray start` printed it"
        ) from error


def status(*, seconds: float = SECONDS) -> list[NodeStatus]:
    """Asks the daemon of each node that announces memory of cards, by a small task there.

    After ray.init(). A node that has not answered after so many seconds is named with its problem.
    """
    ray = imported("ray", "vramkit[ray]")
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"] and RESOURCE in node["Resources"]]
    task = ray.remote(num_cpus=0, max_retries=0)(_look)
    asked = {
        task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(): node
        for node in nodes
    }
    ready, late = (
        ray.wait(list(asked), num_returns=len(asked), timeout=seconds) if asked else ([], [])
    )
    answers = {reference: _answer(ray, reference) for reference in ready}
    for reference in late:
        ray.cancel(reference, force=True)
        answers[reference] = Look(problem=f"no answer within {seconds:g} s")
    return [node_status(node, answers[reference]) for reference, node in asked.items()]


class Look(msgspec.Struct):
    """The answer of a node."""

    host: str = ""
    enforced: bool = False
    status: bytes | None = None
    problem: str = ""


def _look() -> bytes:
    """Runs on the node."""
    look = Look(socket.gethostname(), understands_options())
    try:
        with Controls(paths.chosen_socket()) as controls:
            look.status = msgspec.json.encode(controls.status())
    except NoDaemonError:
        look.problem = "no daemon; the first task or actor of options() starts one"
    except (DaemonError, OSError) as error:
        look.problem = str(error)
    return msgspec.msgpack.encode(look)


def _answer(ray: Any, reference: Any) -> Look:
    try:
        return msgspec.msgpack.decode(ray.get(reference), type=Look)
    except ray.exceptions.RayError as error:
        return Look(problem=" ".join(str(error).split())[:200])


def node_status(node: dict[str, Any], look: Look) -> NodeStatus:
    from vramkit.share.status import Status

    found = None if look.status is None else msgspec.json.decode(look.status, type=Status)
    problem = look.problem
    if look.host and not look.enforced:
        problem = "not started by vramkit: Ray ignores memory limits here; see docs/ray.md"
    return NodeStatus(
        node=node["NodeID"],
        name=look.host or node["NodeManagerHostname"],
        address=node["NodeManagerAddress"],
        announced_mib=int(node["Resources"][RESOURCE]),
        problem=problem,
        status=found,
    )
