"""PyTorch's questions about memory, answered by the pools that serve it.

The functions of torch.cuda and torch.accelerator ask torch._C at every call. That layer is
replaced: it also serves programs that imported memory_allocated and the like before install(), and
PyTorch's own code above it, such as memory_summary().
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from vramkit.integrations import _library
from vramkit.integrations._torch_snapshot import segments_of
from vramkit.pool.config import MIB

if TYPE_CHECKING:
    from vramkit import Pool
    from vramkit.pool import PoolStats

Nested = dict[str, Any]


class Memory:
    """Answers for every device of this PyTorch. `pool_of` gives a device its pool, and makes it."""

    def __init__(self, torch: Any, pool_of: Callable[[int], Pool]) -> None:
        self._torch = torch
        self._pool_of = pool_of
        # Counters at the last reset_accumulated_memory_stats. The pool's own go on: other
        # frameworks may use it, and programs read both.
        self._before: dict[int, dict[str, int]] = {}

    def replace(self) -> None:
        """From here on PyTorch asks this object. A name that this PyTorch lacks is left out."""
        replacements: dict[str, Callable[..., object]] = {
            "_cuda_memoryStats": self.stats,
            "_cuda_resetAccumulatedMemoryStats": self.reset_accumulated,
            "_cuda_resetPeakMemoryStats": self.reset_peaks,
            "_cuda_memorySnapshot": self.snapshot,
            "_cuda_setMemoryFraction": self.set_fraction,
            "_cuda_getMemoryFraction": self.fraction,
            "_cuda_record_memory_history": _no_history,
            "_cuda_record_memory_history_legacy": _no_history,
            "_cuda_isHistoryEnabled": lambda: False,
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_getDeviceStats": self.stats,
            "_accelerator_resetAccumulatedStats": self.reset_accumulated,
            "_accelerator_resetPeakStats": self.reset_peaks,
        }
        for name, function in replacements.items():
            if hasattr(self._torch._C, name):
                setattr(self._torch._C, name, function)

    def stats(self, device: int) -> Nested:
        """memory_stats_as_nested_dict: every key of PyTorch; 0 for what a pool does not count."""
        return nested(self._counts(device), self._before.get(device, {}))

    def reset_accumulated(self, device: int) -> None:
        self._before[device] = self._counts(device)

    def reset_peaks(self, device: int) -> None:
        if self._is_served(device):
            self._pool_of(device).reset_peaks()

    def snapshot(self, wanted: tuple[Any, ...] | None = None) -> Nested:
        """Segments of all devices; of one MemPool or graph, which a pool does not tell apart, none.

        PyTorch gives the two numbers of a MemPool, (0, 0) for all, and a third item.
        """
        segments: list[Nested] = []
        devices = range(self._torch.cuda.device_count())
        if wanted is None or tuple(wanted[:2]) == (0, 0):
            for device in filter(self._is_served, devices):
                segments += segments_of(self._pool_of(device).snapshot(), device)
        return {
            "segments": segments,
            "device_traces": [[] for _ in devices],
            "allocator_settings": {},
            "external_annotations": [],
        }

    def set_fraction(self, fraction: float, device: int) -> None:
        """PyTorch has checked the fraction. 1 removes the limit."""
        self._require(device)
        pool = self._pool_of(device)
        limit = int(fraction * pool.device.memory_info().total)
        pool.configure(limit=None if fraction == 1 else max(limit, 2 * MIB))

    def fraction(self, device: int) -> float:
        self._require(device)
        pool = self._pool_of(device)
        limit = pool.config.limit
        return 1.0 if limit is None else min(1.0, limit / pool.device.memory_info().total)

    def _counts(self, device: int) -> dict[str, int]:
        """stats() of the pool and what PyTorch was refused; empty where no pool serves yet."""
        if not self._is_served(device):
            return {}
        stats: PoolStats = self._pool_of(device).stats()
        refused = _library.library().vramkit_torch_failures(device)
        return {**msgspec.structs.asdict(stats), "refused": refused}

    def _is_served(self, device: int) -> bool:
        """A device that was never used gets no pool only to be looked at: that would initialize
        the driver there.
        """
        self._require(device)
        return bool(_library.library().vramkit_torch_is_served(device))

    def _require(self, device: int) -> None:
        if not 0 <= device < self._torch.cuda.device_count():
            raise RuntimeError(f"Invalid device argument {device}: did you call init?")


def nested(now: dict[str, int], before: dict[str, int]) -> Nested:
    """PyTorch's dictionary from the counts of a pool. `before`: those at the last reset."""
    # Counters below what they were: Pool.reset_stats() was called.
    counters = {name: now.get(name, 0) for name in _COUNTERS}
    if all(count >= before.get(name, 0) for name, count in counters.items()):
        counters = {name: count - before.get(name, 0) for name, count in counters.items()}
        reserved_before = before.get("reserved", 0)
    else:
        reserved_before = 0
    usage = _of_all(
        now.get("current_usage", 0),
        now.get("peak_usage", 0),
        counters["total_allocated"],
        counters["total_freed"],
    )
    reserved, released = now.get("reserved", 0), counters["released_bytes"]
    allocations = counters["allocation_count"], counters["free_count"]
    live = max(0, now.get("allocation_count", 0) - now.get("free_count", 0))
    return {
        "num_alloc_retries": 0,
        "num_ooms": counters["refused"],
        "num_oom_rejections": 0,
        "num_sync_all_streams": 0,
        "num_device_alloc": counters["device_growths"],
        "num_device_free": 0,
        "max_split_size": -1,
        "allocated_bytes": usage,
        "requested_bytes": usage,
        "active_bytes": usage,
        "reserved_bytes": _of_all(
            reserved,
            now.get("peak_reserved", 0),
            max(0, reserved + released - reserved_before),
            released,
        ),
        "inactive_split_bytes": _of_all(now.get("cached", 0) + now.get("waiting", 0)),
        "allocation": _of_all(live, 0, *allocations),
        "active": _of_all(live, 0, *allocations),
        "segment": _of_all(now.get("pieces", 0)),
        "inactive_split": _of_all(),
        "oversize_allocations": _metric(),
        "oversize_segments": _metric(),
        "reserved_bytes_by_private_pools": {},
    }


_COUNTERS = (
    "total_allocated",
    "total_freed",
    "allocation_count",
    "free_count",
    "released_bytes",
    "device_growths",
    "refused",
)


def _of_all(current: int = 0, peak: int = 0, allocated: int = 0, freed: int = 0) -> Nested:
    return {
        "all": _metric(current, peak, allocated, freed),
        "large_pool": _metric(),
        "small_pool": _metric(),
    }


def _metric(current: int = 0, peak: int = 0, allocated: int = 0, freed: int = 0) -> Nested:
    return {"current": current, "peak": peak, "allocated": allocated, "freed": freed}


def _no_history(*arguments: object, **settings: object) -> NoReturn:
    raise RuntimeError(
        "vramkit's pool records no history of allocations: call torch.cuda.memory_snapshot() for "
        "what it holds now, or leave vramkit.integrations.torch.install() out of this run"
    )
