"""RMM's memory from a vramkit pool, so that cuDF and the rest of RAPIDS use it too.

RMM reaches the pool through two Python calls: it takes functions of Python, and no C functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramkit.integrations._frameworks import imported, refuse_simulated

if TYPE_CHECKING:
    from vramkit import Pool

PACKAGES = "rmm-cu12 or rmm-cu13"


def install(pool: Pool | None = None) -> Pool:
    """Let RMM allocate from vramkit on the pool's device. Returns the pool, which is
    Pool.instance() where none is given.

    What was allocated before goes back to the resource it came from.
    """
    rmm = imported("rmm", PACKAGES)
    chosen = _choose(pool)
    rmm.mr.set_per_device_resource(chosen.device.ordinal, memory_resource(chosen))
    return chosen


def memory_resource(pool: Pool | None = None) -> Any:
    """An rmm.mr.DeviceMemoryResource over the pool: for one buffer, or under RMM's adaptors."""
    rmm = imported("rmm", PACKAGES)
    chosen = _choose(pool)
    malloc, free = chosen.malloc, chosen.free

    def allocate(size: int, stream: object) -> int:
        return malloc(size, stream)

    def deallocate(address: int, size: int, stream: object) -> None:
        free(address, size, stream)

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def _choose(pool: Pool | None) -> Pool:
    import vramkit

    if pool is None:
        refuse_simulated(vramkit.driver.open(), "RMM")
        return vramkit.Pool.instance()
    refuse_simulated(pool.device.driver, "RMM")
    return pool
