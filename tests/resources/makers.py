"""Every resource under test, by name. Sizes fit the smallest simulated card of these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vramkit.driver import Device
from vramkit.lab.baselines import Arena, FixedPool
from vramkit.resources import (
    Adaptor,
    AsyncResource,
    DirectResource,
    FailureCallback,
    Limit,
    Pool,
    Recording,
    Resource,
    Statistics,
    Tracking,
)

MIB = 1 << 20
SLAB = 48 * MIB
HUGE = 1 << 39  # allowed, and more than any card has

Make = Callable[[Device, Path], Resource]


def stacked(device: Device, folder: Path) -> Resource:
    """All adaptors at once, over the simplest resource that keeps memory."""
    callback = FailureCallback(FixedPool(SLAB, device=device), lambda size: False)
    recording = Recording(callback, folder / "trace")
    return Statistics(Limit(Tracking(recording), SLAB))


MAKERS: dict[str, Make] = {
    "pool": lambda device, folder: Pool(device=device),
    "direct": lambda device, folder: DirectResource(device=device),
    "async": lambda device, folder: AsyncResource(device=device),
    "async, shared": lambda device, folder: AsyncResource(device=device, shared=True),
    "fixed pool": lambda device, folder: FixedPool(SLAB, device=device),
    "arena": lambda device, folder: Arena(SLAB, device=device),
    "statistics": lambda device, folder: Statistics(DirectResource(device=device)),
    "all adaptors": stacked,
}


def layers(resource: Resource) -> Iterator[Resource]:
    """An adaptor and what is below it, from the top."""
    yield resource
    while isinstance(resource, Adaptor):
        resource = resource.upstream
        yield resource


@contextmanager
def made(name: str, device: Device, folder: Path) -> Iterator[Resource]:
    """The resource; at the end no block may be live, and everything goes back."""
    resource = MAKERS[name](device, folder)
    yield resource
    for layer in layers(resource):
        layer.close()


def check_accounts(resource: Resource, sizes: list[int]) -> None:
    """What the resource counts itself, against the sizes of the blocks that are live."""
    for layer in layers(resource):
        found: Any = layer
        if isinstance(found, Pool):
            assert found.check_invariants() == ""
            assert found.stats().current_usage == sum(sizes)
        elif isinstance(found, Statistics):
            counts = found.stats()
            assert (counts.current_usage, counts.current_blocks) == (sum(sizes), len(sizes))
        elif isinstance(found, Limit):
            assert found.used == sum(sizes) <= found.limit
        elif isinstance(found, Tracking):
            assert sorted(block.size for block in found.outstanding()) == sorted(sizes)
        elif not isinstance(found, Adaptor):
            assert (found.live_bytes, found.live_blocks) == (sum(sizes), len(sizes))
        if isinstance(found, FixedPool | Arena):
            handed_out = sum(-(-size // 256) * 256 for size in sizes)
            assert found.free_bytes + handed_out == found.reserved_bytes == SLAB
