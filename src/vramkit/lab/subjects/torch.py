"""PyTorch's caching allocator, plain and with expandable segments, by its raw interface.

Known from PyTorch 2.11 to 2.13. Its settings are read once in a process, so each of the two needs a
process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vramkit.lab.subjects.peer import is_for_cpus, order_free, out_of_memory, why_missing

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver, Stream
    from vramkit.lab.subjects.subject import Allocator, Room

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Newer and older versions."""
MIB = 1 << 20


@dataclass(frozen=True)
class Torch:
    name: str
    title: str
    expandable: bool
    needs_size: bool = False
    can_be_limited: bool = True
    ours: bool = False

    def missing(self, driver: Driver) -> str:
        why = why_missing(driver, "torch", "PyTorch")
        return why or ("this PyTorch is built for CPUs only" if is_for_cpus("torch") else "")

    def open(self, device: Device, room: Room) -> AbstractContextManager[Allocator]:
        return self._open(device, room)

    @contextmanager
    def _open(self, device: Device, room: Room) -> Iterator[Allocator]:
        for variable in VARIABLES:
            os.environ[variable] = f"expandable_segments:{self.expandable}"
        cuda = import_module("torch").cuda
        cuda.init()
        total = device.memory_info().total
        part = 1.0 if room.limit is None else min(1.0, room.limit / total)
        require_segments(cuda, device.ordinal, expandable=self.expandable)
        cuda.set_per_process_memory_fraction(part, device.ordinal)
        try:
            yield TorchAllocator(cuda, device.ordinal)
        finally:
            cuda.set_per_process_memory_fraction(1.0, device.ordinal)
            cuda.empty_cache()


def require_segments(cuda: Any, device: int, *, expandable: bool) -> None:
    """Looked up, not trusted: the process may have used PyTorch with other settings before."""
    block = cuda.caching_allocator_alloc(MIB, device)
    found = any(segment.get("is_expandable") for segment in cuda.memory_snapshot())
    cuda.caching_allocator_delete(block)
    cuda.empty_cache()
    if found != expandable:
        raise RuntimeError(
            f"PyTorch's expandable_segments is {found} in this process, and should be "
            f"{expandable}: it was used with that setting before"
        )


class TorchAllocator:
    """Handles are addresses and the stream of the allocation."""

    resource = None

    def __init__(self, cuda: Any, device: int) -> None:
        self._device = device
        self._alloc = cuda.caching_allocator_alloc
        self._delete = cuda.caching_allocator_delete
        # As they come from C++; memory_reserved() flattens all of them first, in every call.
        self._statistics = cuda.memory_stats_as_nested_dict
        self._error: type[BaseException] = cuda.OutOfMemoryError

    def allocate(self, size: int, stream: Stream) -> object:
        try:
            return self._alloc(size, self._device, stream.handle), stream
        except self._error as error:
            raise out_of_memory("torch.cuda.caching_allocator_alloc", error) from error

    def free(self, handle: object, size: int, stream: Stream) -> None:
        assert isinstance(handle, tuple)
        address, own = handle
        order_free(own, stream)
        self._delete(address)

    def address(self, handle: object) -> int:
        assert isinstance(handle, tuple)
        return int(handle[0])

    def held(self) -> int:
        return int(self._statistics(self._device)["reserved_bytes"]["all"]["current"])


TORCH = (
    Torch("torch", "PyTorch's caching allocator", expandable=False),
    Torch("torch_expandable", "PyTorch's, with expandable segments", expandable=True),
)
