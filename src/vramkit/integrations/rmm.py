"""RMM's memory from a vramkit pool, so that cuDF and the rest of RAPIDS use it too.

RMM reaches the pool through two Python calls: it takes functions of Python, and no C functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramkit.integrations._frameworks import imported, refuse_simulated
from vramkit.integrations._source import Source, usable_source

if TYPE_CHECKING:
    from vramkit import Pool

PACKAGES = "rmm-cu12 or rmm-cu13"


def install(pool: Pool | None = None) -> Pool:
    """Make RMM allocate from vramkit on the pool's device. Returns the pool, which is
    Pool.instance() if none is given.

    Memory that was allocated before goes back to the resource it came from.
    """
    rmm = imported("rmm", PACKAGES)
    chosen = _process_wide() if pool is None else usable_source(pool)
    resource = memory_resource(chosen)
    rmm.mr.set_per_device_resource(chosen.device.ordinal, resource)
    return chosen


def memory_resource(source: Source | None = None) -> Any:
    """An rmm.mr.DeviceMemoryResource over a resource of vramkit, Pool.instance() if none is
    given: for one buffer, or under RMM's adaptors.
    """
    rmm = imported("rmm", PACKAGES)
    chosen: Source = _process_wide() if source is None else usable_source(source)
    refuse_simulated(chosen.device.driver, "RMM")
    malloc, free = chosen.malloc, chosen.free

    # Empty buffers have the null pointer, as from RMM's own pools.
    def allocate(size: int, stream: object) -> int:
        return malloc(size, stream) if size else 0

    def deallocate(address: int, size: int, stream: object) -> None:
        if size:
            free(address, size, stream)

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def _process_wide() -> Pool:
    import vramkit

    refuse_simulated(vramkit.driver.open(), "RMM")
    return vramkit.Pool.instance()
