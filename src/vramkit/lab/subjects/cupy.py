"""CuPy's pools, through the interface that CuPy's own arrays use: the current stream.

Known from CuPy 13 and 14. What is in the times is what a CuPy program pays: entering the stream's
context is a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from vramkit.lab.subjects.peer import order_free, out_of_memory, why_missing

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver, Stream
    from vramkit.lab.subjects.subject import Allocator, Room


@dataclass(frozen=True)
class Cupy:
    name: str
    title: str
    pool: Literal["MemoryPool", "MemoryAsyncPool"]
    can_be_limited: bool
    needs_size: bool = False
    ours: bool = False

    def missing(self, driver: Driver) -> str:
        return why_missing(driver, "cupy", "CuPy")

    def open(self, device: Device, room: Room) -> AbstractContextManager[Allocator]:
        return self._open(device, room)

    @contextmanager
    def _open(self, device: Device, room: Room) -> Iterator[Allocator]:
        device.memory_info()  # makes its context current
        pool = getattr(import_module("cupy").cuda, self.pool)()
        if room.limit is not None and self.can_be_limited:
            pool.set_limit(size=room.limit)
        try:
            yield CupyAllocator(device, pool)
        finally:
            pool.free_all_blocks()


class _Block:
    """Holds CuPy's only reference to a block: to drop it is to free the block."""

    __slots__ = ("pointer", "stream")

    def __init__(self, pointer: Any, stream: Stream) -> None:
        self.pointer = pointer
        self.stream = stream


class CupyAllocator:
    resource = None

    def __init__(self, device: Device, pool: Any) -> None:
        self._device = device
        self._pool = pool
        self._cuda = import_module("cupy").cuda
        self._streams: dict[Stream, Any] = {}

    @property
    def cupy_malloc(self) -> Any:
        """For cupy.cuda.set_allocator."""
        return self._pool.malloc

    def allocate(self, size: int, stream: Stream) -> object:
        known = self._streams.get(stream)
        if known is None:
            known = self._cuda.ExternalStream(stream.handle, self._device.ordinal)
            self._streams[stream] = known
        try:
            with known:
                return _Block(self._pool.malloc(size), stream)
        except self._cuda.memory.OutOfMemoryError as error:
            raise out_of_memory("cupy malloc", error) from error

    def free(self, handle: object, size: int, stream: Stream) -> None:
        assert isinstance(handle, _Block)
        order_free(handle.stream, stream)
        handle.pointer = None

    def address(self, handle: object) -> int:
        assert isinstance(handle, _Block)
        return int(handle.pointer.ptr)

    def held(self) -> int:
        return int(self._pool.total_bytes())


CUPY = (
    Cupy("cupy_pool", "CuPy's memory pool", "MemoryPool", can_be_limited=True),
    Cupy("cupy_async", "CuPy's async pool", "MemoryAsyncPool", can_be_limited=False),
)
