"""What a copy may be given, turned into addresses: memory, spans, Buffers, integers, buffers."""

from __future__ import annotations

from numbers import Integral
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    NoReturn,
    Protocol,
    SupportsIndex,
    TypeGuard,
    get_args,
)

from vramkit import _core
from vramkit.driver.types import MOST, Kind, SupportsBuffer, integer, shown, size

if TYPE_CHECKING:
    from vramkit.driver.device import Device


class Ranged(Protocol):
    """A range of addresses: driver memory, a Span, a Buffer of a pool or of another resource."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


KINDS = get_args(Kind)
Addressed = Ranged | SupportsIndex
Operand = Addressed | SupportsBuffer


class Located(NamedTuple):
    """One side of a copy. `held` keeps a buffer object's memory valid; size None: not known."""

    address: int
    nbytes: int | None
    kind: Kind
    held: _core.Buffer | None = None


def locate(device: Device, operand: Operand, *, writable: bool) -> Located:
    """Raises TypeError for what is no memory, BufferError for a buffer that cannot be written."""
    what = "dst" if writable else "src"
    if is_number(operand) or is_range(operand):
        address, nbytes = addressed(operand, what)
        known: Any = getattr(operand, "kind", None)
        kind = known if known in KINDS else kind_at(device, address)
        return Located(address, nbytes, kind)
    if not is_buffer(operand):
        refuse(operand, what, "a buffer object (bytes, bytearray, array)")
    buffer = _core.Buffer(operand, writable)
    return Located(buffer.address, buffer.nbytes, "host", buffer)


def addressed(operand: Addressed, what: str) -> tuple[int, int | None]:
    """Address and size, None where that is not known."""
    if is_number(operand):
        return integer(operand, what), None
    if is_range(operand):
        return integer(operand.address, f"the address of {what}"), size(operand.nbytes)
    refuse(operand, what)


def is_range(operand: object) -> TypeGuard[Ranged]:
    return (
        not isinstance(operand, type) and hasattr(operand, "address") and hasattr(operand, "nbytes")
    )


def is_number(operand: object) -> TypeGuard[SupportsIndex]:
    """NumPy's integers are buffers too, and its arrays have __index__: the first are
    addresses, the second are memory."""
    if not hasattr(type(operand), "__index__"):
        return False
    return isinstance(operand, (int, Integral)) or not is_buffer(operand)


def is_buffer(operand: object) -> TypeGuard[SupportsBuffer]:
    try:
        memoryview(operand).release()  # type: ignore[arg-type]
    except (TypeError, BufferError, ValueError):
        return False
    return True


def refuse(operand: object, what: str, *more: str) -> NoReturn:
    kinds = ", ".join(["memory of the driver", "a Span", "a Buffer", *more])
    raise TypeError(
        f"{what} is {shown(operand)}; it may be {kinds}, or an address, an integer from 0 to {MOST}"
    )


def kind_at(device: Device, address: int) -> Kind:
    """Asks the driver. Pageable memory by address is not known to it and counts as the device's:
    a stale address then gets the driver's error. Pass pageable memory as a buffer object."""
    return "host" if _core.is_host_address(device, address) else "device"


def copy_size(dst: Located, src: Located, nbytes: int | None) -> int:
    """Where not given, the size of the source, or of the destination if only that is known."""
    if nbytes is not None:
        count = size(nbytes)
    elif src.nbytes is not None:
        count = src.nbytes
    elif dst.nbytes is not None:
        count = dst.nbytes
    else:
        raise TypeError("copy() between two addresses needs nbytes")
    for side, known in (("destination", dst.nbytes), ("source", src.nbytes)):
        if known is not None and count > known:
            raise ValueError(f"cannot copy {count} bytes: the {side} has {known}")
    return count
