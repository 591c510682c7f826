"""Small types that the whole driver layer shares, and the checks of plain arguments."""

from __future__ import annotations

from math import inf
from operator import index
from typing import Literal, NamedTuple, NoReturn, Protocol, SupportsIndex

Kind = Literal["device", "host"]

MOST = (1 << 64) - 1
"""What the driver's sizes and addresses can hold."""


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


class Owner:
    """Owns something of the driver and cannot be copied: a copy would free it again."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """copy.copy(), copy.deepcopy() and pickle end here."""
        raise TypeError(
            f"a {type(self).__name__} can be neither copied nor pickled: it owns what the driver "
            "made for it; pass the object itself"
        )


class MemoryInfo(NamedTuple):
    """Bytes of device memory, as the driver counts them: all processes on the card together."""

    free: int
    total: int


class Span(NamedTuple):
    """A range of addresses. `kind` is None if only the driver knows what is there."""

    address: int
    nbytes: int
    kind: Kind | None = None

    def at(self, offset: int = 0, nbytes: int | None = None) -> Span:
        """A part of it; all from `offset` on if nbytes is not given."""
        offset, nbytes = within(self.nbytes, offset, nbytes)
        return Span(self.address + offset, nbytes, self.kind)


def integer(
    value: SupportsIndex, what: str, least: int = 0, most: int = MOST, *, besides: str = ""
) -> int:
    """A number from outside: an int or whatever has __index__, such as NumPy's integers.

    `besides` says, for the error, what else the caller takes: "None, or ".
    """
    if type(value) is int and least <= value <= most:
        return value
    allowed = f"{besides}an integer from {least} to {most}"
    number = whole(value, what, allowed)
    if not least <= number <= most:
        raise ValueError(f"{what} is {number}; it may be {allowed}")
    return number


def whole(value: SupportsIndex, what: str, allowed: str = "an integer") -> int:
    """As integer(), without bounds."""
    if not hasattr(type(value), "__index__"):
        raise TypeError(f"{what} is {shown(value)}; it may be {allowed}")
    return index(value)


def size(value: SupportsIndex, what: str = "nbytes") -> int:
    """A byte count from outside."""
    return integer(value, what)


def number(value: float, what: str) -> float:
    """A finite number of 0 or more from outside."""
    allowed = f"{what} is {shown(value)}; it may be a number of 0 or more"
    if isinstance(value, str | bytes) or not hasattr(type(value), "__float__"):
        raise TypeError(allowed)
    if not 0 <= float(value) < inf:
        raise ValueError(allowed)
    return float(value)


def truth(value: bool, what: str) -> bool:
    """True or False from outside."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} is {shown(value)}; it may be True or False")
    return value


def shown(value: object) -> str:
    """A value as an error shows it: its repr, or its class where that is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"of type {type(value).__name__}"


def within(whole: int, offset: SupportsIndex, nbytes: SupportsIndex | None) -> tuple[int, int]:
    """Offset and length of a part of `whole` bytes, checked."""
    start = size(offset, "offset")
    length = max(whole - start, 0) if nbytes is None else size(nbytes)
    if start + length > whole:
        raise ValueError(f"bytes {start} to {start + length} are not inside {whole} bytes")
    return start, length
