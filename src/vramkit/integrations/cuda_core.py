"""vramkit's resources as memory resources of cuda.core. Works on the simulated GPU too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramkit.integrations._frameworks import imported
from vramkit.integrations._source import Source, usable_source

if TYPE_CHECKING:
    from vramkit import Pool

core = imported("cuda.core", "cuda-core")
_Base: Any = core.MemoryResource


class MemoryResource(_Base):  # type: ignore[misc]
    """A cuda.core.MemoryResource over a resource of vramkit; without one, over Pool.instance().

    Its buffers are cuda.core's own. They are freed on the stream of the allocation, or on the one
    that close() or set_deallocation_stream() names.
    """

    def __init__(self, source: Source | None = None) -> None:
        import vramkit

        self._source: Source = vramkit.Pool.instance() if source is None else usable_source(source)

    @property
    def source(self) -> Source:
        return self._source

    def allocate(self, size: int, *, stream: Any) -> Any:
        # Empty buffers have no address, as in cuda.core's own resources.
        address = self._source.malloc(size, stream) if size else 0
        return core.Buffer.from_handle(address, size, mr=self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        if size:
            self._source.free(int(ptr), size, stream)

    @property
    def is_device_accessible(self) -> bool:
        return True

    @property
    def is_host_accessible(self) -> bool:
        return False

    @property
    def device_id(self) -> int:
        return self._source.device.ordinal


def install(pool: Pool | None = None) -> Pool:
    """Make cuda.core's Device.allocate on the pool's device use the pool. Returns the pool, which
    is Pool.instance() if none is given.
    """
    import vramkit

    chosen = vramkit.Pool.instance() if pool is None else usable_source(pool)
    core.Device(chosen.device.ordinal).memory_resource = MemoryResource(chosen)
    return chosen
