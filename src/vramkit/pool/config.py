"""Settings and statistics of a pool."""

from __future__ import annotations

from operator import index
from typing import Literal, NoReturn

import msgspec

from vramkit import _core

MIB = 1 << 20


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a pool. The defaults suit most programs.

    All except background and nvtx can be changed later; with nvtx, limit cannot be changed either.
    """

    alignment: int = 256
    """Alignment of every block, in bytes: a power of two, 256 to 65536."""
    thread_cache_max_blocks: int = 64
    """Free blocks of one size class that a thread cache keeps for a stream."""
    global_cache_max_blocks: int = 1024
    """Free blocks of one size class that a stream cache keeps before they become idle."""
    batch_alloc_count: int = 16
    """Blocks made, or moved between thread cache and stream cache, at a time."""
    defrag_threshold: float = 0.3
    """Fragmentation rate above which the background thread joins idle memory."""
    defrag_interval_ms: int = 5000
    """Time between two checks of fragmentation."""
    enable_stats: bool = True
    """Count allocations and frees."""
    enable_defrag: bool = True
    """Join idle memory in the background when it is too fragmented."""
    cache_bytes: int = 32 * MIB
    """Free bytes that a thread keeps for one stream."""
    thread_cache_bytes: int = 256 * MIB
    """Free bytes that a thread keeps for all its streams together."""
    limit: int | None = None
    """Bytes the pool may take from the driver, in whole pages of 2 MiB; None: all of the card."""
    decay_ms: int | None = 10_000
    """Memory that was not needed for so long goes back to the driver; None: never."""
    size_classes: Literal["fine", "power_of_two"] = "fine"
    """"fine": multiples of 256 bytes up to 2 KiB, then at most 12.5 % above the request;
    "power_of_two": the thirteen powers of two up to 1 MiB."""
    large: Literal["pool", "direct"] = "pool"
    """Blocks above 1 MiB: pooled, or by cuMemAlloc and cuMemFree, which waits for the card."""
    background: bool = True
    """Run a background thread that does what step() does."""
    nvtx: bool = False
    """Tell tools which blocks are in use, so that compute-sanitizer finds accesses outside them.

    Needs limit: the pool takes all of it from the driver at once, and keeps it until it is closed.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if _is_integer(value := getattr(self, name)):
                msgspec.structs.force_setattr(self, name, index(value))
        for name in (
            "thread_cache_max_blocks",
            "global_cache_max_blocks",
            "cache_bytes",
            "thread_cache_bytes",
        ):
            _in_bounds(name, getattr(self, name), 0, "0 or more")
        _in_bounds("batch_alloc_count", self.batch_alloc_count, 1, "1 or more")
        if self.alignment not in _ALIGNMENTS or not _is_integer(self.alignment):
            _refuse("alignment", self.alignment, "256, 512, 1024, ... 65536")
        threshold = self.defrag_threshold
        if not (_is_integer(threshold) or isinstance(threshold, float)) or not 0 <= threshold < 1:
            _refuse("defrag_threshold", threshold, "0 or more, below 1")
        _in_time("defrag_interval_ms", self.defrag_interval_ms, "1 or more")
        if self.decay_ms is not None:
            _in_time("decay_ms", self.decay_ms, "None for never, or 1 or more")
        if self.limit is not None:
            _in_bounds("limit", self.limit, 2 * MIB, "None, or 2 MiB (one page) or more")
        if self.size_classes not in ("fine", "power_of_two"):
            _refuse("size_classes", self.size_classes, '"fine" or "power_of_two"')
        if self.large not in ("pool", "direct"):
            _refuse("large", self.large, '"pool" or "direct"')
        for name in ("enable_stats", "enable_defrag", "background", "nvtx"):
            if not isinstance(getattr(self, name), bool):
                _refuse(name, getattr(self, name), "True or False")
        self.for_engine()  # refuses what could have no effect

    def for_engine(self) -> _core.PoolConfig:
        settings = msgspec.structs.asdict(self)
        settings["limit"] = self.limit or 0
        settings["decay_ms"] = self.decay_ms or 0
        return _core.PoolConfig(**settings)


_ALIGNMENTS = [1 << power for power in range(8, 17)]


def _in_time(name: str, value: int, words: str) -> None:
    if not _is_integer(value) or not 1 <= value <= 1 << 40:
        _refuse(name, value, f"{words} milliseconds, up to 2^40")


def _in_bounds(name: str, value: int, least: int, words: str) -> None:
    if not _is_integer(value) or not least <= value < 1 << 63:
        _refuse(name, value, f"{words}, below 2^63")


def _is_integer(value: object) -> bool:
    """NumPy's integers count too."""
    return hasattr(type(value), "__index__") and not isinstance(value, bool)


def _refuse(name: str, value: object, words: str) -> NoReturn:
    raise ValueError(f"{name} is {value!r}; it may be {words}")


class PoolStats(msgspec.Struct, frozen=True):
    """Counters since the last reset_stats, and the current state of a pool. Sizes in bytes."""

    total_allocated: int
    total_freed: int
    allocation_count: int
    free_count: int
    cache_hits: int
    """Served by the thread's own cache."""
    cache_misses: int
    stream_cache_hits: int
    """Of the misses: served by the stream cache, which the stream's threads share."""
    idle_hits: int
    """... by idle memory."""
    cross_stream_hits: int
    """... by blocks of other streams whose work was done."""
    gpu_wait_hits: int
    """... by such blocks after a wait on the GPU."""
    remap_hits: int
    """... by free pieces mapped side by side."""
    growth_hits: int
    """... by new memory."""
    direct_hits: int
    """... by the driver itself (large="direct")."""
    device_growths: int
    """Times that memory was taken from the driver."""
    events_recorded: int
    """Events recorded behind freed blocks, to know when their work is done."""
    released_bytes: int
    """Bytes given back to the driver."""
    remapped_bytes: int
    """Bytes of pieces mapped at a second address, where they were needed."""
    current_usage: int
    """Bytes asked for and not freed."""
    peak_usage: int
    """Exact to 64 KiB a thread."""
    reserved: int
    """Bytes taken from the driver."""
    peak_reserved: int
    cached: int
    """Free, in thread caches."""
    waiting: int
    """Free, in stream caches or held for other streams."""
    idle: int
    """Free for any stream."""
    fragmentation_bytes: int
    """Free, in ranges below the largest size asked for in the last interval."""
    fragmentation_rate: float
    """fragmentation_bytes / mapped bytes."""
    pieces: int
    """Handles of the driver."""
    segments: int
    """Stretches of contiguous mapped memory."""
    slabs: int
    large_blocks: int
    """Blocks above 60 KiB: in use, or free in a cache."""
    captures: int
    """Captured streams whose graphs exist."""
