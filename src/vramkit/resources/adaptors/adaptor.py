"""What all adaptors share: the resource below, and the table of the live blocks."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from vramkit._core import DeviceBuffer as Buffer
from vramkit.driver.errors import ClosedError
from vramkit.driver.types import Owner, whole
from vramkit.resources.resource import Resource

if TYPE_CHECKING:
    from vramkit.driver import Device


class Held(NamedTuple):
    """A live block."""

    size: int
    note: Any
    """What allocated() returned."""


class Adaptor(Owner):
    """A resource on top of another one, the upstream, which it neither owns nor closes.

    It frees what it handed out and nothing else. Usable from any thread. An adaptor of your own
    overrides take() to change how blocks are allocated, or allocated() and freed() to observe.
    """

    def __init__(self, upstream: Resource) -> None:
        if isinstance(upstream, type) or not isinstance(upstream, Resource):
            raise TypeError(
                f"upstream is {upstream!r}; it must be a resource, with device, closed, malloc, "
                "free, allocate, deallocate and close"
            )
        self._upstream = upstream
        self._closed = False
        # Reentrant: the garbage collector may drop a Buffer while the lock is held.
        self._lock = RLock()
        self._live: dict[int, Held] = {}  # by address

    # For adaptors to override

    def take(self, size: int, stream: object | None) -> int:
        """A block from the upstream."""
        return self._upstream.malloc(size, stream)

    def put_back(self, address: int, size: int) -> None:
        """Undoes take(): allocated() failed, and the block is not handed out."""
        self._upstream.free(address)

    def allocated(self, address: int, size: int, stream: object | None) -> object:
        """A block is handed out; what is returned is kept with it. Called with the lock held."""
        return None

    def freed(self, address: int, block: Held, stream: object | None) -> None:
        """A block went back to the upstream. Called with the lock held."""

    def finish(self) -> None:
        """The adaptor closes."""

    # The interface

    @property
    def upstream(self) -> Resource:
        return self._upstream

    @property
    def device(self) -> Device:
        return self._upstream.device

    @property
    def closed(self) -> bool:
        return self._closed or self._upstream.closed

    def malloc(self, size: int, stream: object | None = None) -> int:
        """The address of a block of `size` bytes, for use in stream order."""
        self._require_open()
        size = whole(size, "size")
        address = self.take(size, stream)
        try:
            with self._lock:
                self._live[address] = Held(size, self.allocated(address, size, stream))
        except BaseException:
            self._live.pop(address, None)
            self.put_back(address, size)
            raise
        return address

    def free(self, address: int, size: int | None = None, stream: object | None = None) -> None:
        """Free a block at the current point of its stream, or of the given one."""
        self._require_open()
        address = whole(address, "address")
        with self._lock:
            held = self._live.pop(address, None)
        if held is None:
            raise ValueError(
                f"the pointer {address:#x} is of no block that this {type(self).__name__} has in "
                "use: freed twice, inside a block, or not allocated through it"
            )
        try:
            self._upstream.free(address, size, stream)
        except BaseException:
            with self._lock:
                self._live[address] = held
            raise
        with self._lock:
            self.freed(address, held, stream)

    def allocate(self, size: int, *, stream: object | None = None) -> Buffer:
        """A block as an object that frees itself."""
        return Buffer(self, size, stream)

    def deallocate(self, address: int, size: int, *, stream: object | None = None) -> None:
        """free, under the name that goes with allocate."""
        self.free(address, whole(size, "size"), stream)

    def close(self) -> None:
        """End the adaptor; the upstream stays open. Raises ValueError while blocks are in use."""
        if self._closed:
            return
        if self._live and not self._upstream.closed:
            raise ValueError(
                f"the {type(self).__name__} has {len(self._live)} blocks in use "
                f"({sum(block.size for block in self._live.copy().values())} bytes): "
                "free them before close()"
            )
        self._closed = True
        self.finish()

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {type(self).__name__} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Blocks that an exception left in use must not hide it.
        with nullcontext() if kind is None else suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"<{type(self).__name__} over {self._upstream!r}{closed}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name in ("_upstream", "_closed", "_lock", "_live"):
                raise TypeError(f"{type(self).__name__}.__init__ must call super().__init__()")
            return object.__getattribute__(self, name)  # raises the usual AttributeError
