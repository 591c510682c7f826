"""Small types that the whole driver layer shares, and the checks of plain arguments."""

from __future__ import annotations

from operator import index
from typing import Literal, NamedTuple, Protocol, SupportsIndex

Kind = Literal["device", "host"]


class SupportsCudaStream(Protocol):
    """Any stream: ours, torch's, cuda.core's, CuPy's."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """The version of the protocol, 0, and the handle."""
        ...


class SupportsBuffer(Protocol):
    """Any buffer object: bytes, bytearray, memoryview, array, mmap, NumPy arrays."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Called by Python itself from 3.12 on; before, buffers have it for type checkers only."""
        ...


class MemoryInfo(NamedTuple):
    """Bytes of device memory, as the driver counts them: all processes on the card together."""

    free: int
    total: int


class Span(NamedTuple):
    """A range of addresses. `kind` is None where only the driver can tell what lies there."""

    address: int
    nbytes: int
    kind: Kind | None = None

    def at(self, offset: int = 0, nbytes: int | None = None) -> Span:
        """A part of it; the rest from `offset` on where nbytes is not given."""
        offset, nbytes = within(self.nbytes, offset, nbytes)
        return Span(self.address + offset, nbytes, self.kind)


def size(value: SupportsIndex, what: str = "nbytes") -> int:
    """A byte count from outside."""
    number = index(value)
    if number < 0:
        raise ValueError(f"{what} is {number}; it may not be negative")
    return number


def within(whole: int, offset: SupportsIndex, nbytes: SupportsIndex | None) -> tuple[int, int]:
    """Offset and length of a part of `whole` bytes, checked."""
    start = size(offset, "offset")
    length = max(whole - start, 0) if nbytes is None else size(nbytes)
    if start + length > whole:
        raise ValueError(f"bytes {start} to {start + length} are not inside {whole} bytes")
    return start, length
