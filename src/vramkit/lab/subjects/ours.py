"""vramkit's own resources, at their defaults, and the two baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramkit import Pool
from vramkit.lab.baselines import Arena, FixedPool
from vramkit.lab.subjects.sizes import size_of
from vramkit.resources import AsyncResource, DirectResource

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver, Stream
    from vramkit.lab.subjects.subject import Allocator, Room

Engine = Pool | DirectResource | AsyncResource | FixedPool | Arena


@dataclass(frozen=True)
class Own:
    """A subject written in C++, which the native player can use."""

    name: str
    title: str
    make: Callable[[Device, Room], Engine]
    needs_size: bool = False
    can_be_limited: bool = False
    ours: bool = True

    def missing(self, driver: Driver) -> str:
        return ""

    def open(self, device: Device, room: Room) -> AbstractContextManager[Allocator]:
        return self._open(device, room)

    @contextmanager
    def _open(self, device: Device, room: Room) -> Iterator[Allocator]:
        with self.make(device, room) as engine:
            yield OwnAllocator(engine)


class OwnAllocator:
    """Handles are addresses."""

    def __init__(self, engine: Engine) -> None:
        self.resource = engine

    def allocate(self, size: int, stream: Stream) -> object:
        return self.resource.malloc(size, stream)

    def free(self, handle: object, size: int, stream: Stream) -> None:
        assert isinstance(handle, int)
        self.resource.free(handle, size, stream)

    def address(self, handle: object) -> int:
        assert isinstance(handle, int)
        return handle

    def held(self) -> int:
        return self.resource.reserved_bytes


OURS = (
    Own(
        "pool",
        "vramkit's Pool, no settings",
        lambda device, room: Pool(device=device, limit=room.limit),
        can_be_limited=True,
    ),
    Own(
        "direct",
        "cuMemAlloc and cuMemFree for each block",
        lambda device, room: DirectResource(device=device),
    ),
    Own(
        "async",
        "the driver's pool (cuMemAllocAsync), keeping what it has",
        lambda device, room: AsyncResource(device=device),
    ),
    Own(
        "fixed_pool",
        "baseline: one slab, best fit; half of the free memory",
        lambda device, room: FixedPool(size_of(device, room), device=device),
        needs_size=True,
        can_be_limited=True,
        ours=False,
    ),
    Own(
        "arena",
        "baseline: an arena for each stream; half of the free memory",
        lambda device, room: Arena(size_of(device, room), device=device),
        needs_size=True,
        can_be_limited=True,
        ours=False,
    ),
)
