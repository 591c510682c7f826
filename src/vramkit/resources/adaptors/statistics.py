"""Counts of what went through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vramkit.resources.adaptors.adaptor import Adaptor, Held

if TYPE_CHECKING:
    from vramkit.resources.resource import Resource


class Counts(msgspec.Struct):
    """Allocations and requested bytes since a scope began.

    Usage starts from zero: a scope that frees more than it allocates ends below zero.
    """

    allocation_count: int = 0
    free_count: int = 0
    total_allocated: int = 0
    total_freed: int = 0
    peak_usage: int = 0
    """Exact for one thread; with several, a block still counts while it is being freed."""
    peak_blocks: int = 0

    @property
    def current_usage(self) -> int:
        return self.total_allocated - self.total_freed

    @property
    def current_blocks(self) -> int:
        return self.allocation_count - self.free_count


class Statistics(Adaptor):
    """Counts allocations and bytes, over its life and by nested scopes.

    >>> statistics.push()
    >>> step(statistics)
    >>> statistics.pop().peak_usage
    """

    def __init__(self, upstream: Resource) -> None:
        super().__init__(upstream)
        self._scopes = [Counts()]

    def stats(self) -> Counts:
        """A copy of the counts of the innermost scope."""
        with self._lock:
            return msgspec.structs.replace(self._scopes[-1])

    def push(self) -> None:
        """Begin a scope. It belongs to the resource: calls of all threads count in it."""
        with self._lock:
            self._scopes.append(Counts())

    def pop(self) -> Counts:
        """End the innermost scope and return its counts. Outer scopes have counted them too."""
        with self._lock:
            if len(self._scopes) == 1:
                raise ValueError("pop() without push(); stats() has the counts of the whole life")
            return self._scopes.pop()

    def allocated(self, address: int, size: int, stream: object | None) -> None:
        for counts in self._scopes:
            counts.allocation_count += 1
            counts.total_allocated += size
            counts.peak_usage = max(counts.peak_usage, counts.current_usage)
            counts.peak_blocks = max(counts.peak_blocks, counts.current_blocks)

    def freed(self, address: int, block: Held, stream: object | None) -> None:
        for counts in self._scopes:
            counts.free_count += 1
            counts.total_freed += block.size
