"""Settings and statistics of a pool."""

from __future__ import annotations

from typing import Literal

import msgspec

from vramkit import _core

MIB = 1 << 20


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool can be told. The defaults need no change; all may change at run time."""

    thread_cache_max_blocks: int = 64
    """Free blocks of one size class that a thread keeps for a stream before it shares them."""
    global_cache_max_blocks: int = 1024
    """Free blocks of one size class that are shared before idle memory goes back to the driver."""
    batch_alloc_count: int = 16
    """Blocks that are made, or moved between thread and shared level, at a time."""
    cache_bytes: int = 32 * MIB
    """Bytes that a thread keeps for a stream before it shares them."""
    limit: int | None = None
    """Bytes that the pool may take from the driver; None: what the card has."""
    enable_stats: bool = True
    """Count allocations, frees, hits and misses."""
    size_classes: Literal["fine", "seed"] = "fine"
    """"fine": at most 12.5 % above the request; "seed": thirteen powers of two up to 1 MiB."""

    def __post_init__(self) -> None:
        for name in ("thread_cache_max_blocks", "global_cache_max_blocks", "cache_bytes"):
            _in_bounds(name, getattr(self, name), 0, "0 or more")
        _in_bounds("batch_alloc_count", self.batch_alloc_count, 1, "1 or more")
        if self.limit is not None:
            _in_bounds("limit", self.limit, 2 * MIB, "None, or 2 MiB (one page) or more")
        if self.size_classes not in ("fine", "seed"):
            raise ValueError(f'size_classes is {self.size_classes!r}; it may be "fine" or "seed"')

    def for_engine(self) -> _core.PoolConfig:
        return _core.PoolConfig(
            thread_cache_max_blocks=self.thread_cache_max_blocks,
            global_cache_max_blocks=self.global_cache_max_blocks,
            batch_alloc_count=self.batch_alloc_count,
            cache_bytes=self.cache_bytes,
            limit=self.limit or 0,
            enable_stats=self.enable_stats,
            seed_classes=self.size_classes == "seed",
        )


def _in_bounds(name: str, value: int, least: int, words: str) -> None:
    if not least <= value < 1 << 63:
        raise ValueError(f"{name} is {value}; it may be {words}")


class PoolStats(msgspec.Struct, frozen=True):
    """What a pool did since its last reset_stats, and what it holds now. Sizes in bytes."""

    total_allocated: int
    total_freed: int
    allocation_count: int
    free_count: int
    cache_hits: int
    """Served by the thread's own cache."""
    cache_misses: int
    global_hits: int
    """Of the misses: served by blocks that threads had shared."""
    fresh_hits: int
    """... by blocks that were mapped and never used."""
    device_growths: int
    """Times that memory was taken from the driver."""
    current_usage: int
    """Asked for and not freed."""
    peak_usage: int
    """Exact to 64 KiB a thread."""
    reserved: int
    """Taken from the driver."""
    peak_reserved: int
    cached: int
    """Free, in threads' caches."""
    waiting: int
    """Free, at the shared level."""
    chunks: int
    marks: int
    """Events recorded."""
