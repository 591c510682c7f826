"""A block of a pool as an object."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vramkit.driver.errors import ClosedError

if TYPE_CHECKING:
    from vramkit.pool.pool import Pool


class Buffer:
    """Device memory from a pool, given back on close, at the end of a with block, or when dropped.

    Keeps its pool and its stream alive. It is freed in the order of the stream it was allocated
    on; use it on other streams only with events in between.
    """

    __slots__ = ("__weakref__", "_address", "_pool", "_stream", "nbytes")

    def __init__(self, pool: Pool, nbytes: int, stream: object | None) -> None:
        self._address = 0
        self._pool = pool
        self._stream = stream
        self.nbytes = nbytes
        self._address = pool.malloc(nbytes, stream)

    @property
    def address(self) -> int:
        if self._address == 0:
            raise ClosedError("this Buffer is closed")
        return self._address

    @property
    def stream(self) -> object | None:
        return self._stream

    @property
    def closed(self) -> bool:
        return self._address == 0

    def close(self, stream: object | None = None) -> None:
        """Free the block, on the given stream or on that of the allocation. Twice is harmless."""
        address, self._address = self._address, 0
        if address:
            try:
                self._pool.free(address, self.nbytes, stream)
            except ClosedError:
                # The simulated GPU was reset and the block went with it; or this is a forked child
                # and the block is the parent's.
                pass
            except BaseException:
                self._address = address
                raise

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        handle = None
        if self._stream is not None:
            handle = self._stream.__cuda_stream__()[1]  # type: ignore[attr-defined]
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            # 1 is the legacy default stream: consumers order themselves behind it.
            "stream": handle or 1,
        }

    def __len__(self) -> int:
        return self.nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_address", 0):
            self.close()

    def __repr__(self) -> str:
        where = "closed" if self.closed else f"at {self._address:#x}"
        return f"<Buffer of {self.nbytes} bytes, {where}>"
