"""A kubelet's side of the device plugin protocol, as its definition says, for one plugin.

Folders as of a real one: plugins put their sockets beside `kubelet.sock`, and a kubelet that starts
removes all that are there.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from vramkit.integrations.kubernetes.api import MESSAGES, caller, handlers

from .nodes import until


class Kubelet:
    """Serves Registration and PodResourcesLister, and calls the plugin that registers."""

    def __init__(self, folder: Path, *, refuses: str = "") -> None:
        self.folder = folder
        self.refuses = refuses
        self.registered: list[Any] = []
        self.lists: list[dict[str, str]] = []
        """Each list that came: health by id."""
        self.pods: dict[str, list[str]] = {}
        """The ids that a pod's container has."""
        self.resources: dict[str, str] = {}
        """What they are ids of."""
        self._server: Any = None
        self._resources: Any = None
        self._channel: Any = None
        self._stream: Any = None
        (folder / "device-plugins").mkdir(parents=True, exist_ok=True)
        (folder / "pod-resources").mkdir(exist_ok=True)

    def start(self, *, removes: bool = True) -> None:
        for each in (self.folder / "device-plugins").iterdir():
            if removes or each.name == "kubelet.sock":
                each.unlink()
        self._server = self._serve("v1beta1.Registration", "device-plugins/kubelet.sock")
        self._resources = self._serve("v1.PodResourcesLister", "pod-resources/kubelet.sock")

    def _serve(self, service: str, path: str) -> Any:
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers([handlers(service, self)])
        server.add_insecure_port(f"unix://{self.folder / path}")
        server.start()
        return server

    def stop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for server in (self._server, self._resources):
            if server is not None:
                server.stop(0).wait()
        self._server = self._resources = None

    def restart(self, *, removes: bool = True) -> None:
        self.stop()
        self.registered.clear()
        self.lists.clear()
        self.start(removes=removes)

    def end_stream(self) -> None:
        """The list of units alone: what a kubelet does with a message that it cannot read."""
        self._stream.cancel()

    # What a plugin calls

    def Register(self, request: Any, context: Any) -> Any:
        if self.refuses:
            context.abort(grpc.StatusCode.UNKNOWN, self.refuses)
        self._channel = grpc.insecure_channel(
            f"unix://{self.folder / 'device-plugins' / request.endpoint}"
        )
        self.registered.append(request)
        threading.Thread(target=self._watch, args=(self._channel,), daemon=True).start()
        return MESSAGES["Empty"]()

    def List(self, request: Any, context: Any) -> Any:
        pods = []
        devices = MESSAGES["ContainerDevices"]
        for name, ids in self.pods.items():
            resource = self.resources.get(name, "")
            listed = [devices(resource_name="x.dev/y", device_ids=["z"])]
            listed += [devices(resource_name=resource, device_ids=[each]) for each in ids]
            container = MESSAGES["ContainerResources"](name="main", devices=listed)
            pods.append(MESSAGES["PodResources"](name=name, containers=[container]))
        return MESSAGES["ListPodResourcesResponse"](pod_resources=pods)

    # What it does

    def _watch(self, channel: Any) -> None:
        try:
            self._stream = self._call("ListAndWatch", channel)(MESSAGES["Empty"]())
            for answer in self._stream:
                self.lists.append({each.ID: each.health for each in answer.devices})
        except (grpc.RpcError, ValueError):
            return  # the plugin, or this kubelet, has ended

    def _call(self, name: str, channel: Any = None) -> Any:
        return caller(channel or self._channel, "v1beta1.DevicePlugin", name)

    @property
    def resource(self) -> str:
        return str(self.registered[-1].resource_name)

    def devices(self) -> dict[str, str]:
        found: dict[str, str] = until(lambda: self.lists and self.lists[-1])
        return found

    def healthy(self) -> list[str]:
        return [each for each, health in self.devices().items() if health == "Healthy"]

    def admit(self, pod: str, count: int) -> Any:
        """Starts a pod that asks for so many; what its container gets. Raises grpc.RpcError."""
        taken = {each for ids in self.pods.values() for each in ids}
        free = [each for each in self.healthy() if each not in taken]
        assert len(free) >= count, "the scheduler would not place it here"
        request = MESSAGES["ContainerPreferredAllocationRequest"](
            available_deviceIDs=free, allocation_size=count
        )
        answer = self._call("GetPreferredAllocation")(
            MESSAGES["PreferredAllocationRequest"](container_requests=[request])
        )
        ids = list(answer.container_responses[0].deviceIDs)
        assert len(set(ids)) == count and set(ids) <= set(free)
        request = MESSAGES["ContainerAllocateRequest"](devices_ids=ids)
        answer = self._call("Allocate")(MESSAGES["AllocateRequest"](container_requests=[request]))
        self.pods[pod], self.resources[pod] = ids, self.resource
        return answer.container_responses[0]
