"""The kubelet's side: registering, noticing that it was started again, asking what pods have."""

from __future__ import annotations

from pathlib import Path

import grpc

from vramkit.integrations.kubernetes.api import MESSAGES, VERSION, caller
from vramkit.integrations.kubernetes.units import Unit, UnitError, tag_of

SECONDS = 10.0
# A list of pods with many small units.
LARGEST_LIST = 64 << 20


class KubeletError(RuntimeError):
    """The kubelet refuses the plugin; the text is its own."""


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


def allocations(pod_resources: Path, unit: Unit) -> list[tuple[str, int]] | None:
    """What containers of this node have: the tag of the card, and the number of units.

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
    found = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            ids = [
                each
                for devices in container.devices
                if devices.resource_name == unit.resource
                for each in devices.device_ids
            ]
            if ids:
                try:
                    found.append((tag_of(ids[0]), len(ids)))
                except UnitError:
                    return None
    return found
