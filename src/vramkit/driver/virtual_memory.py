"""Virtual memory management: reserved addresses, physical memory, and the mapping between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.driver.memory import Memory, Resource
from vramkit.driver.types import shown, within

if TYPE_CHECKING:
    from vramkit.driver.device import Device


class PhysicalMemory(Resource):
    """Memory on the card without an address. If closed while mapped, it lives until unmapped."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self._handle = _core.virtual_create(device, nbytes)
        super().__init__(device, nbytes)

    @property
    def handle(self) -> int:
        self._require_open()
        return self._handle

    def _release(self) -> None:
        _core.virtual_release(self.device, self._handle)

    def __repr__(self) -> str:
        return f"<PhysicalMemory of {self.nbytes} bytes{', closed' if self.closed else ''}>"


class AddressRange(Memory):
    """Reserved addresses. Closing it unmaps what is still mapped and frees the addresses.

    None of it waits for work in flight: unmapping memory in use is the caller's error.
    """

    def __init__(self, device: Device, nbytes: int) -> None:
        super().__init__(device, _core.virtual_reserve(device, nbytes), nbytes)
        self._mapped: dict[int, int] = {}  # bytes by offset

    def map(self, physical: PhysicalMemory, offset: int = 0) -> None:
        """Map the whole of `physical` at an offset; it can be used after set_access()."""
        if not isinstance(physical, PhysicalMemory):
            raise TypeError(f"physical is {shown(physical)}; it may be PhysicalMemory")
        offset, nbytes = within(self.nbytes, offset, physical.nbytes)
        _core.virtual_map(self.device, self.address + offset, nbytes, physical.handle)
        self._mapped[offset] = nbytes

    def set_access(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Let the device read and write a range of whole mappings."""
        offset, nbytes = within(self.nbytes, offset, nbytes)
        _core.virtual_set_access(self.device, self.address + offset, nbytes)

    def unmap(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Unmap a range of whole mappings."""
        offset, nbytes = within(self.nbytes, offset, nbytes)
        _core.virtual_unmap(self.device, self.address + offset, nbytes)
        self._mapped = {
            start: length
            for start, length in self._mapped.items()
            if not offset <= start < offset + nbytes
        }

    def _release(self) -> None:
        for offset, nbytes in self._mapped.items():
            _core.virtual_unmap(self.device, self._address + offset, nbytes)
        _core.virtual_free_address(self.device, self._address, self.nbytes)
