"""The interface that every resource of device memory has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from vramkit._core import DeviceBuffer as Buffer

if TYPE_CHECKING:
    from vramkit.driver import Device

LARGEST = 1 << 40
"""Bytes of the largest request."""


@runtime_checkable
class Resource(Protocol):
    """Hands out device memory in stream order, from any thread.

    1. malloc returns the address of a block of `size` bytes (1 byte to 1 TiB), aligned to 256, for
       use in stream order; no stream: the legacy default stream. Raises OutOfMemoryError.
    2. free takes a block back at the current point of the stream of its allocation, or of the given
       stream: the caller has ordered all use of the block before it. A given size is checked.
    3. A block is live from its malloc to its free. No two live blocks overlap, and memory that is
       handed out again comes after its last use in the order of the streams.
    4. allocate and deallocate are the same pair for Buffer objects, which free themselves.
    5. Bad input raises one exception and changes nothing: ValueError for a size out of range, an
       address that is no live block, a wrong size or a stream of another device; TypeError for what
       is no integer or no stream; ClosedError after close(), in a forked child, after a reset of
       the simulated GPU, and for a closed stream.
    6. close raises ValueError while blocks are live; a second time does nothing.
    """

    @property
    def device(self) -> Device: ...

    @property
    def closed(self) -> bool: ...

    def malloc(self, size: int, stream: object | None = None) -> int: ...

    def free(self, address: int, size: int | None = None, stream: object | None = None) -> None: ...

    def allocate(self, size: int, *, stream: object | None = None) -> Buffer: ...

    def deallocate(self, address: int, size: int, *, stream: object | None = None) -> None: ...

    def close(self) -> None: ...
