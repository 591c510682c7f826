"""The rule by which allocators of a fixed size get theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramkit.driver import Device
    from vramkit.lab.subjects.subject import Room

UNIT = 256


def size_of(device: Device, room: Room) -> int:
    """Room.size where it is given, else half of the free memory, which is what RMM's pool and arena
    take by default and in RMM's own benchmarks; at most Room.limit, in whole units."""
    size = room.size if room.size is not None else device.memory_info().free // 2
    if room.limit is not None:
        size = min(size, room.limit)
    return max(UNIT, size // UNIT * UNIT)
