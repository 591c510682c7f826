"""A bound on the bytes in use."""

from __future__ import annotations

from vramkit.driver.errors import OutOfMemoryError
from vramkit.driver.types import integer
from vramkit.resources.adaptors.adaptor import Adaptor, Held
from vramkit.resources.resource import LARGEST, Resource


class Limit(Adaptor):
    """Lets at most `limit` bytes be in use, counted as requested.

    A request beyond it raises OutOfMemoryError and does not reach the upstream. Memory that the
    upstream keeps in reserve does not count.
    """

    def __init__(self, upstream: Resource, limit: int) -> None:
        limit = integer(limit, "limit", 1)
        super().__init__(upstream)
        self._limit = limit
        self._used = 0

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def used(self) -> int:
        """Bytes in use, with those of requests in progress."""
        return self._used

    def take(self, size: int, stream: object | None) -> int:
        if not 0 < size <= LARGEST or self._upstream.closed:
            return super().take(size, stream)  # the upstream says what is wrong
        with self._lock:
            used = self._used
            if used + size > self._limit:
                raise OutOfMemoryError(
                    "Limit.malloc",
                    2,
                    "CUDA_ERROR_OUT_OF_MEMORY",
                    f"asked for {size} bytes, of a limit of {self._limit} with {used} in use; "
                    "free blocks, or set a higher limit",
                )
            self._used += size
        try:
            return super().take(size, stream)
        except BaseException:
            with self._lock:
                self._used -= size
            raise

    def put_back(self, address: int, size: int) -> None:
        super().put_back(address, size)
        with self._lock:
            self._used -= size

    def freed(self, address: int, block: Held, stream: object | None) -> None:
        self._used -= block.size
