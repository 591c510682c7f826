"""Memory pools for the tests: made, asked and changed by the short names of their attributes."""

from __future__ import annotations

from typing import Any

from .support import ok


class Pool:
    """One memory pool, with its attributes by their short names."""

    def __init__(self, cu: Any, handle: Any) -> None:
        self._cu = cu
        self.handle = handle

    def which(self, attribute: str) -> Any:
        return getattr(self._cu.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{attribute}")

    def get(self, attribute: str) -> int:
        return int(ok(self._cu.cuMemPoolGetAttribute(self.handle, self.which(attribute))))

    def set(self, attribute: str, value: int) -> Any:
        """The raw result. The flags of reuse are ints, everything else is 64 bits wide."""
        given: Any = value if attribute.startswith("REUSE") else self._cu.cuuint64_t(value)
        return self._cu.cuMemPoolSetAttribute(self.handle, self.which(attribute), given)

    def alloc(self, nbytes: int, stream: Any) -> int:
        return int(ok(self._cu.cuMemAllocFromPoolAsync(nbytes, self.handle, stream)))

    @property
    def reserved(self) -> int:
        return self.get("RESERVED_MEM_CURRENT")

    @property
    def used(self) -> int:
        return self.get("USED_MEM_CURRENT")


def properties(cu: Any, maximum: int = 0) -> Any:
    given = cu.CUmemPoolProps()
    given.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    given.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    given.location.id = 0
    given.maxSize = maximum
    return given


def make_pool(cu: Any, scope: Any, maximum: int = 0) -> Pool:
    pool = Pool(cu, ok(cu.cuMemPoolCreate(properties(cu, maximum))))
    scope.undo(cu.cuMemPoolDestroy, pool.handle)
    return pool
