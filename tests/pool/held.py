"""Blocks that are used on other streams too, for tests of held blocks."""

from __future__ import annotations

from vramkit import Pool
from vramkit.driver import Device, Stream

from .support import MIB, take_all

SIZE = 4 * MIB
SECOND = 10**9


def used_on_both(
    pool: Pool, device: Device, owner: Stream, *others: Stream, size: int = SIZE
) -> int:
    """A block of the owner that the others read and write for a second each, in their order."""
    address = pool.malloc(size, owner)
    device.fill(address, 1, size, stream=owner)
    before = owner
    for stream in others:
        stream.wait(before)
        device.kernels.spin(SECOND, stream=stream)
        device.fill(address, 2, size, stream=stream)
        before = stream
    return address


def shared_block(
    pool: Pool, device: Device, owner: Stream, *others: Stream, size: int = SIZE
) -> int:
    address = used_on_both(pool, device, owner, *others, size=size)
    for stream in others:
        pool.also_used_on(address, stream)
    return address


def is_held(pool: Pool, address: int, asks: Stream, size: int = SIZE) -> bool:
    """Whether a stream that takes all free blocks of this size does not get the block."""
    assert pool.check_invariants() == ""
    stats = pool.stats()
    count = (stats.cached + stats.waiting) // size + 1
    return address not in take_all(pool, size, [asks], count)


def taken_by(pool: Pool, device: Device, stream: Stream, size: int = SIZE) -> int:
    """What the stream gets now, used and freed."""
    address = pool.malloc(size, stream)
    device.fill(address, 3, size, stream=stream)
    pool.free(address)
    return address
