"""Objects a test takes and gives back: everything registered is freed in reverse order."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from .support import create_context, ok


class Scope(ExitStack):
    """Creates driver objects that are destroyed when the test ends; each destruction must succeed.

    A test that destroys such an object itself uses the driver calls directly instead.
    """

    def __init__(self, driver: ModuleType, device: Any) -> None:
        super().__init__()
        self._driver = driver
        self._device = device

    def undo(self, call: Callable[..., Any], *arguments: Any) -> None:
        """At the end of the test, `call(*arguments)` must return success."""
        self.callback(lambda: ok(call(*arguments)))

    def alloc(self, nbytes: int) -> int:
        address = int(ok(self._driver.cuMemAlloc(nbytes)))
        self.undo(self._driver.cuMemFree, address)
        return address

    def pinned(self, nbytes: int, flags: int = 0) -> int:
        address = int(ok(self._driver.cuMemHostAlloc(nbytes, flags)))
        self.undo(self._driver.cuMemFreeHost, address)
        ctypes.memset(address, 0, nbytes)
        return address

    def pages(self, nbytes: int) -> int:
        """Pageable host memory, aligned to a page and filled with zeros."""
        mapping = mmap.mmap(-1, nbytes)
        self.callback(mapping.close)
        view = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(view)
        del view
        return address

    def registered(self, nbytes: int, flags: int = 0) -> int:
        address = self.pages(nbytes)
        ok(self._driver.cuMemHostRegister(address, nbytes, flags))
        self.undo(self._driver.cuMemHostUnregister, address)
        return address

    def stream(self, flags: int = 1) -> Any:
        """A stream; non-blocking unless told."""
        stream = ok(self._driver.cuStreamCreate(flags))
        self.undo(self._driver.cuStreamDestroy, stream)
        return stream

    def event(self, flags: int = 0) -> Any:
        event = ok(self._driver.cuEventCreate(flags))
        self.undo(self._driver.cuEventDestroy, event)
        return event

    def recorded(self, stream: Any) -> Any:
        """A new event recorded in `stream` now."""
        event = self.event()
        ok(self._driver.cuEventRecord(event, stream))
        return event

    def context(self, flags: int = 0) -> Any:
        """A created context that is not left current."""
        context = ok(create_context(self._driver, self._device, flags))
        ok(self._driver.cuCtxPopCurrent())
        self.undo(self._driver.cuCtxDestroy, context)
        return context

    def reserve(self, nbytes: int, alignment: int = 0) -> int:
        address = int(ok(self._driver.cuMemAddressReserve(nbytes, alignment, 0, 0)))
        self.undo(self._driver.cuMemAddressFree, address, nbytes)
        return address

    def create(self, nbytes: int) -> Any:
        handle = ok(self._driver.cuMemCreate(nbytes, self.properties(), 0))
        self.undo(self._driver.cuMemRelease, handle)
        return handle

    def map(self, address: int, nbytes: int, handle: Any) -> None:
        """Maps a whole handle; unmapped at the end (a second unmap does no harm)."""
        ok(self._driver.cuMemMap(address, nbytes, 0, handle, 0))
        self.undo(self._driver.cuMemUnmap, address, nbytes)

    def mapped(self, nbytes: int) -> int:
        """Readable and writable memory made of one handle at a reserved address."""
        address = self.reserve(nbytes)
        self.map(address, nbytes, self.create(nbytes))
        ok(self._driver.cuMemSetAccess(address, nbytes, [self.access()], 1))
        return address

    def properties(self, device: int = 0) -> Any:
        properties = self._driver.CUmemAllocationProp()
        properties.type = self._driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = self.location(device)
        return properties

    def location(self, device: int = 0) -> Any:
        location = self._driver.CUmemLocation()
        location.type = self._driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = device
        return location

    def access(self, *, writable: bool = True, device: int = 0) -> Any:
        flags = self._driver.CUmemAccess_flags
        access = self._driver.CUmemAccessDesc()
        access.location = self.location(device)
        access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            if writable
            else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        return access

    def write(self, address: int, data: bytes) -> None:
        """Puts bytes at a device address by a synchronous copy and waits for it."""
        source = ctypes.create_string_buffer(data, len(data))
        ok(self._driver.cuMemcpyHtoD(address, ctypes.addressof(source), len(data)))

    def read(self, address: int, nbytes: int) -> bytes:
        """The bytes at a device address, by a synchronous copy."""
        target = ctypes.create_string_buffer(nbytes)
        ok(self._driver.cuMemcpyDtoH(ctypes.addressof(target), address, nbytes))
        return target.raw
