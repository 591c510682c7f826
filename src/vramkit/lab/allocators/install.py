"""Gives CuPy, or RMM and with it cuDF, the allocator under test, by the shortest way it has.

The pool is reached through its integrations, CuPy's and RMM's own as in any program, all others
through a function of Python for each call, which their times then contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vramkit import Pool
from vramkit.driver import OutOfMemoryError, Stream

if TYPE_CHECKING:
    from vramkit.driver import Device
    from vramkit.lab.subjects.subject import Allocator

Malloc = Callable[[int], Any]
Seen = Callable[[int], None]
"""Called after each allocation with its bytes, and after each free with minus those."""


@contextmanager
def in_cupy(
    allocator: Allocator, device: Device, around: Callable[[Malloc], Malloc] | None = None
) -> Iterator[None]:
    """Inside, CuPy's arrays have their memory from the allocator; `around` makes what CuPy calls
    from what it would have called."""
    cupy = import_module("cupy")
    with ExitStack() as stack:
        if hasattr(allocator, "memory_resource"):
            stack.enter_context(in_rmm(allocator, device))
        malloc = cupy_malloc(cupy, allocator, device)
        stack.callback(cupy.cuda.set_allocator, cupy.cuda.get_allocator())
        cupy.cuda.set_allocator(malloc if around is None else around(malloc))
        yield


def seen_by(cupy: Any, seen: Seen) -> Callable[[Malloc], Malloc]:
    """For in_cupy(): `seen` is called after each allocation and each free."""

    def around(malloc: Malloc) -> Malloc:
        def noted(size: int) -> Any:
            memory = malloc(size)
            seen(size)
            return owned_by(cupy, _Seen(memory, size, seen), memory, size)

        return noted

    return around


class _Seen:
    """Keeps a block; whoever drops the last reference to it frees the block."""

    __slots__ = ("_memory", "_seen", "_size")

    def __init__(self, memory: Any, size: int, seen: Seen) -> None:
        self._memory, self._size, self._seen = memory, size, seen

    def __del__(self) -> None:
        self._memory = None
        self._seen(-self._size)


def owned_by(cupy: Any, owner: object, memory: Any, size: int) -> Any:
    """The same block for CuPy, which keeps `owner` as long as the block lives."""
    if not memory.ptr:
        return memory
    cuda = cupy.cuda
    return cuda.MemoryPointer(cuda.UnownedMemory(memory.ptr, size, owner, memory.device_id), 0)


def cupy_malloc(cupy: Any, allocator: Allocator, device: Device) -> Malloc:
    if isinstance(allocator.resource, Pool):
        from vramkit.integrations.cupy import allocator as of_pool

        return of_pool(allocator.resource)
    if (own := getattr(allocator, "cupy_malloc", None)) is not None:
        found: Malloc = own
        return found
    if hasattr(allocator, "memory_resource"):  # RMM's current one: in_cupy sees to it
        of_rmm: Malloc = import_module("rmm.allocators.cupy").rmm_cupy_allocator
        return of_rmm
    blocks = Blocks(allocator, device)

    def allocate(size: int, ordinal: int) -> int:
        return blocks.allocate(size, cupy.cuda.get_current_stream().ptr)

    def free(address: int, ordinal: int) -> None:
        blocks.free(address)

    foreign: Malloc = cupy.cuda.PythonFunctionAllocator(allocate, free).malloc
    return foreign


@contextmanager
def in_rmm(allocator: Allocator, device: Device, seen: Seen | None = None) -> Iterator[None]:
    """Inside, RMM's current resource of the device is the allocator."""
    mr = import_module("rmm").mr
    before = mr.get_current_device_resource()
    resource = rmm_resource(mr, allocator, device)
    mr.set_current_device_resource(resource if seen is None else _noted(mr, resource, seen))
    try:
        yield
    finally:
        mr.set_current_device_resource(before)


def _noted(mr: Any, resource: Any, seen: Seen) -> Any:
    def allocate(size: int, stream: Any) -> int:
        address = int(resource.allocate(size, stream))
        seen(size)
        return address

    def deallocate(address: int, size: int, stream: Any) -> None:
        resource.deallocate(address, size, stream)
        seen(-size)

    return mr.CallbackMemoryResource(allocate, deallocate)


def rmm_resource(mr: Any, allocator: Allocator, device: Device) -> Any:
    if isinstance(allocator.resource, Pool):
        from vramkit.integrations.rmm import memory_resource

        return memory_resource(allocator.resource)
    if (own := getattr(allocator, "memory_resource", None)) is not None:
        return own
    blocks = Blocks(allocator, device)

    def allocate(size: int, stream: Any) -> int:
        return blocks.allocate(size, stream.__cuda_stream__()[1]) if size else 0

    def deallocate(address: int, size: int, stream: Any) -> None:
        if size:
            blocks.free(address)

    return mr.CallbackMemoryResource(allocate, deallocate)


class Blocks:
    """An allocator of the lab by addresses, as frameworks know blocks. A block is freed in the
    order of the stream of its allocation, which is what CuPy's own pools do."""

    def __init__(self, allocator: Allocator, device: Device) -> None:
        self._allocator = allocator
        self._device = device
        self._streams: dict[int, Stream] = {}
        self._live: dict[int, tuple[object, int, Stream]] = {}

    def allocate(self, size: int, stream: int) -> int:
        """Raises MemoryError, which RMM understands."""
        known = self._streams.get(stream)
        if known is None:
            known = self._streams[stream] = Stream.from_handle(self._device, stream)
        try:
            handle = self._allocator.allocate(size, known)
        except OutOfMemoryError as error:
            raise MemoryError(str(error)) from error
        address = self._allocator.address(handle)
        self._live[address] = handle, size, known
        return address

    def free(self, address: int) -> None:
        self._allocator.free(*self._live.pop(address))
