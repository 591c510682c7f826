"""RMM's memory resources, through RMM's own Python interface.

Settings as in RMM's benchmarks: half of the free memory at first, bins from 256 KiB to 4 MiB over
the pool. Known from RMM 25 and 26.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from vramkit.lab.subjects.peer import out_of_memory, why_missing
from vramkit.lab.subjects.sizes import UNIT, size_of

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver, Stream
    from vramkit.lab.subjects.subject import Allocator, Room

Kind = Literal["pool", "arena", "async", "binning"]
SMALLEST_BIN, LARGEST_BIN = 18, 22
"""Exponents of 2."""


def memory_resource(kind: Kind, upstream: Any, size: int, limit: int | None = None) -> Any:
    """An rmm.mr resource; `upstream` is where all but "async" have their memory from."""
    mr = import_module("rmm").mr
    if kind == "async":
        return mr.CudaAsyncMemoryResource()
    if kind == "arena":
        return mr.ArenaMemoryResource(upstream, arena_size=size)
    most = None if limit is None else limit // UNIT * UNIT
    pool = mr.PoolMemoryResource(upstream, initial_pool_size=size, maximum_pool_size=most)
    if kind == "pool":
        return pool
    return mr.BinningMemoryResource(pool, SMALLEST_BIN, LARGEST_BIN)


@dataclass(frozen=True)
class Rmm:
    kind: Kind
    title: str
    needs_size: bool = True
    can_be_limited: bool = True
    ours: bool = False

    @property
    def name(self) -> str:
        return f"rmm_{self.kind}"

    def missing(self, driver: Driver) -> str:
        return why_missing(driver, "rmm", "RMM")

    def open(self, device: Device, room: Room) -> AbstractContextManager[Allocator]:
        return self._open(device, room)

    @contextmanager
    def _open(self, device: Device, room: Room) -> Iterator[Allocator]:
        size = size_of(device, room)
        try:
            allocator = RmmAllocator(self.kind, device, size, room.limit)
        except MemoryError as error:
            raise out_of_memory(f"opening {self.name}", error) from error
        try:
            yield allocator
        finally:
            allocator.close()


class RmmAllocator:
    """Handles are addresses. RMM's resources end with the last reference to them."""

    resource = None

    def __init__(self, kind: Kind, device: Device, size: int, limit: int | None) -> None:
        self._make_stream = import_module("rmm.pylibrmm.stream").Stream
        self._streams: dict[Stream, Any] = {}
        mr = import_module("rmm").mr
        self._device = device
        self._free_before = device.memory_info().free
        # Counts what the resource above it takes from the driver; not on the way of a block.
        self._taken = (
            None if kind == "async" else mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
        )
        self._mr = memory_resource(kind, self._taken, size, limit)

    @property
    def memory_resource(self) -> Any:
        """For rmm.mr.set_current_device_resource."""
        return self._mr

    def allocate(self, size: int, stream: Stream) -> object:
        try:
            return self._mr.allocate(size, self._stream(stream))
        except MemoryError as error:
            raise out_of_memory("rmm allocate", error) from error

    def free(self, handle: object, size: int, stream: Stream) -> None:
        self._mr.deallocate(handle, size, self._stream(stream))

    def address(self, handle: object) -> int:
        assert isinstance(handle, int)
        return handle

    def held(self) -> int:
        """RMM's async resource does not tell: what is gone of the card's free memory since it was
        opened, by whomever."""
        if self._taken is None:
            return max(0, self._free_before - self._device.memory_info().free)
        return int(self._taken.allocation_counts.current_bytes)

    def close(self) -> None:
        self._mr = self._taken = None

    def _stream(self, stream: Stream) -> Any:
        known = self._streams.get(stream)
        if known is None:
            known = self._streams[stream] = self._make_stream(stream)
        return known


RMM = (
    Rmm("pool", "RMM's pool, half of the free memory at first"),
    Rmm("arena", "RMM's arena, half of the free memory"),
    Rmm("async", "RMM's async, the driver's pool", needs_size=False, can_be_limited=False),
    Rmm("binning", "RMM's bins of 256 KiB to 4 MiB over its pool"),
)
