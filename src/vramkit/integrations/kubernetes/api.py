"""The messages of the kubelet's interfaces, built when this is imported: no generated code.

Generated code would tie users to the versions of protobuf and grpc that generated it. The numbers
are those of kubelet's deviceplugin/v1beta1 and podresources/v1; fields that are not used here may
be missing, as unknown fields are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

VERSION = "v1beta1"

# Field, number, type; a type in brackets is repeated. `map` is from string to string.
DEVICE_PLUGIN: dict[str, list[tuple[str, int, str]]] = {
    "Empty": [],
    "DevicePluginOptions": [
        ("pre_start_required", 1, "bool"),
        ("get_preferred_allocation_available", 2, "bool"),
    ],
    "RegisterRequest": [
        ("version", 1, "string"),
        ("endpoint", 2, "string"),
        ("resource_name", 3, "string"),
        ("options", 4, "DevicePluginOptions"),
    ],
    "Device": [("ID", 1, "string"), ("health", 2, "string")],
    "ListAndWatchResponse": [("devices", 1, "[Device]")],
    "ContainerPreferredAllocationRequest": [
        ("available_deviceIDs", 1, "[string]"),
        ("must_include_deviceIDs", 2, "[string]"),
        ("allocation_size", 3, "int32"),
    ],
    "PreferredAllocationRequest": [
        ("container_requests", 1, "[ContainerPreferredAllocationRequest]")
    ],
    "ContainerPreferredAllocationResponse": [("deviceIDs", 1, "[string]")],
    "PreferredAllocationResponse": [
        ("container_responses", 1, "[ContainerPreferredAllocationResponse]")
    ],
    "ContainerAllocateRequest": [("devices_ids", 1, "[string]")],
    "AllocateRequest": [("container_requests", 1, "[ContainerAllocateRequest]")],
    "CDIDevice": [("name", 1, "string")],
    "ContainerAllocateResponse": [("envs", 1, "map"), ("cdi_devices", 5, "[CDIDevice]")],
    "AllocateResponse": [("container_responses", 1, "[ContainerAllocateResponse]")],
    "PreStartContainerRequest": [("devices_ids", 1, "[string]")],
    "PreStartContainerResponse": [],
}
POD_RESOURCES: dict[str, list[tuple[str, int, str]]] = {
    "ListPodResourcesRequest": [],
    "ContainerDevices": [("resource_name", 1, "string"), ("device_ids", 2, "[string]")],
    "ContainerResources": [("name", 1, "string"), ("devices", 2, "[ContainerDevices]")],
    "PodResources": [
        ("name", 1, "string"),
        ("namespace", 2, "string"),
        ("containers", 3, "[ContainerResources]"),
    ],
    "ListPodResourcesResponse": [("pod_resources", 1, "[PodResources]")],
}

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"bool": _Field.TYPE_BOOL, "string": _Field.TYPE_STRING, "int32": _Field.TYPE_INT32}


def _messages(package: str, table: dict[str, list[tuple[str, int, str]]]) -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"vramkit/{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL)
            if kind == "map" or kind.startswith("["):
                added.label = _Field.LABEL_REPEATED
            inner = kind.strip("[]")
            if kind == "map":
                inner = _add_map_entry(message, package, field)
            if inner in _SCALARS:
                added.type = _SCALARS[inner]
            else:
                added.type = _Field.TYPE_MESSAGE
                added.type_name = inner if inner.startswith(".") else f".{package}.{inner}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in table
    }


def _add_map_entry(message: Any, package: str, field: str) -> str:
    """A map is a repeated message of key and value, by the encoding's definition."""
    entry = message.nested_type.add(name=f"{field.capitalize()}Entry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), start=1):
        entry.field.add(
            name=name, number=number, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL
        )
    return f".{package}.{message.name}.{entry.name}"


MESSAGES: dict[str, Any] = _messages("v1beta1", DEVICE_PLUGIN) | _messages("v1", POD_RESOURCES)

# Service, and the request and response of each call; a response in brackets is a stream.
CALLS = {
    "v1beta1.Registration": {"Register": ("RegisterRequest", "Empty")},
    "v1beta1.DevicePlugin": {
        "GetDevicePluginOptions": ("Empty", "DevicePluginOptions"),
        "ListAndWatch": ("Empty", "[ListAndWatchResponse]"),
        "GetPreferredAllocation": ("PreferredAllocationRequest", "PreferredAllocationResponse"),
        "Allocate": ("AllocateRequest", "AllocateResponse"),
        "PreStartContainer": ("PreStartContainerRequest", "PreStartContainerResponse"),
    },
    "v1.PodResourcesLister": {"List": ("ListPodResourcesRequest", "ListPodResourcesResponse")},
}


def caller(channel: Any, service: str, call: str) -> Callable[..., Any]:
    """The client's side of one call."""
    request, response = CALLS[service][call]
    make = channel.unary_stream if response.startswith("[") else channel.unary_unary
    called: Callable[..., Any] = make(
        f"/{service}/{call}",
        request_serializer=MESSAGES[request].SerializeToString,
        response_deserializer=MESSAGES[response.strip("[]")].FromString,
    )
    return called


def handlers(service: str, served: object) -> Any:
    """The server's side of a service: each call is the method of its name."""
    found = {}
    for call, (request, response) in CALLS[service].items():
        stream = response.startswith("[")
        make = (
            grpc.unary_stream_rpc_method_handler if stream else grpc.unary_unary_rpc_method_handler
        )
        found[call] = make(
            getattr(served, call),
            request_deserializer=MESSAGES[request].FromString,
            response_serializer=MESSAGES[response.strip("[]")].SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service, found)
