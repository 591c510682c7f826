"""What a copy may be given, turned into addresses: memory objects, spans, integers, buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vramkit import _core
from vramkit.driver.memory import Memory
from vramkit.driver.types import Kind, Span, SupportsBuffer, size

if TYPE_CHECKING:
    from vramkit.driver.device import Device

Addressed = Memory | Span | int
Place = Addressed | SupportsBuffer


class Located(NamedTuple):
    """One side of a copy. `held` keeps a buffer object's memory in place; size None: not known."""

    address: int
    nbytes: int | None
    kind: Kind
    held: _core.Buffer | None = None


def locate(device: Device, place: Place, *, writable: bool) -> Located:
    """Raises TypeError for what is no place, BufferError for a buffer that cannot be written."""
    if isinstance(place, Memory):
        return Located(place.address, place.nbytes, place.kind)
    if isinstance(place, Span):
        kind = place.kind or kind_at(device, place.address)
        return Located(place.address, place.nbytes, kind)
    if isinstance(place, int):
        return Located(place, None, kind_at(device, place))
    buffer = _core.Buffer(place, writable)
    return Located(buffer.address, buffer.nbytes, "host", buffer)


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
