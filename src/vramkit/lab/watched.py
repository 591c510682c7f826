"""What an allocator holds along a program, in few points, and where its memory is at the peak."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from vramkit import Pool

if TYPE_CHECKING:
    from vramkit.driver import Stream
    from vramkit.lab.subjects.subject import Allocator
    from vramkit.pool.snapshot import Snapshot

MOST_POINTS = 240

Opened = Callable[[], AbstractContextManager["Allocator"]]
"""A new allocator each time."""


class Watched:
    """An allocator that notes what is in use and what is held, each time that held() is asked.

    A player asks at the start, after each allocation and each free, and at the end; `look` follows
    `look_at` of these. One thread at a time may use it: programs with several take turns.
    """

    resource = None  # so that the calls come this way

    def __init__(
        self, under: Allocator, look_at: int = -1, look: Callable[[], None] = lambda: None
    ) -> None:
        self._under = under
        self._look_at = look_at
        self._look = look
        self._now = 0
        self._in_use = array("q")
        self._held = array("q")

    def allocate(self, size: int, stream: Stream) -> object:
        handle = self._under.allocate(size, stream)
        self._now += size
        return handle

    def free(self, handle: object, size: int, stream: Stream) -> None:
        self._under.free(handle, size, stream)
        self._now -= size

    def address(self, handle: object) -> int:
        return self._under.address(handle)

    def held(self) -> int | None:
        held = self._under.held()
        if held is not None:
            if len(self._held) == self._look_at:
                self._look()
            self._in_use.append(self._now)
            self._held.append(held)
        return held

    def peak_at(self) -> int:
        """After how many calls most was held first; -1 where nobody asked."""
        return self._held.index(max(self._held)) if self._held else -1

    def series(self) -> dict[str, list[float]]:
        """Peaks of at most MOST_POINTS stretches of equal length, so that no peak is missed."""
        count = len(self._held)
        points = min(count, MOST_POINTS)
        ends = [(number + 1) * count // points for number in range(points)]
        parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        return {
            "event": [float(end - 1) for end in ends],
            "in_use": [float(max(self._in_use[part])) for part in parts],
            "held": [float(max(self._held[part])) for part in parts],
        }


def pool_at_peak(
    opened: Opened, go: Callable[[Allocator], object], watched: Watched
) -> Snapshot | None:
    """Of vramkit's pool when it held most, where `watched` went the same way before; None for other
    allocators. When that is, is known at the end alone, so all is done once more."""
    taken: list[Snapshot] = []
    with opened() as allocator:
        pool = allocator.resource
        if not isinstance(pool, Pool):
            return None
        go(Watched(allocator, watched.peak_at(), lambda: taken.append(pool.snapshot())))
    return taken[0] if taken else None
