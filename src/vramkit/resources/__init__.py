"""Resources of device memory with one interface, and adaptors that compose over any of them."""

from vramkit._core import DeviceBuffer as Buffer
from vramkit.pool import Pool
from vramkit.resources.adaptors import (
    Adaptor,
    FailureCallback,
    Limit,
    Recording,
    Statistics,
    Tracking,
    read_trace,
)
from vramkit.resources.asynchronous import AsyncResource
from vramkit.resources.direct import DirectResource
from vramkit.resources.resource import Resource

__all__ = [
    "Adaptor",
    "AsyncResource",
    "Buffer",
    "DirectResource",
    "FailureCallback",
    "Limit",
    "Pool",
    "Recording",
    "Resource",
    "Statistics",
    "Tracking",
    "read_trace",
]
