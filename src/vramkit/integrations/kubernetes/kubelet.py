"""The kubelet's side: registering, noticing that it was started again, asking what pods have."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc

from vramkit.cluster.cards import MIB
from vramkit.integrations.kubernetes.api import MESSAGES, VERSION, caller
from vramkit.integrations.kubernetes.units import Unit, UnitError, tag_of

SECONDS = 10.0
# A list of pods with many small units.
LARGEST_LIST = 64 << 20


class KubeletError(RuntimeError):
    """The kubelet refuses the plugin, in its own words, or has another one."""


def register(kubelet: Path, endpoint: str, resource: str) -> bool:
    """False: nobody answers there yet. Raises KubeletError."""
    options = MESSAGES["DevicePluginOptions"](get_preferred_allocation_available=True)
    request = MESSAGES["RegisterRequest"](
        version=VERSION, endpoint=endpoint, resource_name=resource, options=options
    )
    with grpc.insecure_channel(f"unix://{kubelet}") as channel:
        try:
            caller(channel, "v1beta1.Registration", "Register")(request, timeout=SECONDS)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return False
            raise KubeletError(f"the kubelet refuses {resource}: {error.details()}") from error
    return True


def identity(path: Path) -> tuple[int, int] | None:
    """Another one after the socket was made again; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def answers(path: Path) -> bool:
    """Whether some process serves this socket; one that was killed leaves a socket that nobody
    serves."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.settimeout(SECONDS)
        try:
            trial.connect(str(path))
        except OSError:
            return False
    return True


def allocations(pod_resources: Path) -> list[tuple[str, int]] | None:
    """What containers of this node have: the tag of the card, and bytes; in any unit, since pods
    outlive a plugin that counted in another one.

    None: the kubelet does not say.
    """
    limit = [("grpc.max_receive_message_length", LARGEST_LIST)]
    with grpc.insecure_channel(f"unix://{pod_resources}", options=limit) as channel:
        try:
            answer = caller(channel, "v1.PodResourcesLister", "List")(
                MESSAGES["ListPodResourcesRequest"](), timeout=SECONDS
            )
        except grpc.RpcError:
            return None
    ids: dict[tuple[int, str], list[str]] = {}
    containers = [each for pod in answer.pod_resources for each in pod.containers]
    for number, container in enumerate(containers):
        for devices in container.devices:
            # The kubelet may tell the units of one container in several parts.
            ids.setdefault((number, devices.resource_name), []).extend(devices.device_ids)
    found = []
    for (_, resource), each in ids.items():
        unit = Unit.of(resource)
        if unit is not None and each:
            try:
                found.append((tag_of(each[0]), len(each) * unit.mib * MIB))
            except UnitError:
                return None
    return found
