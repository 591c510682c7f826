"""What a player has measured."""

from __future__ import annotations

from typing import Literal

import msgspec

Measure = Literal["time", "memory"]


class Section(msgspec.Struct, frozen=True):
    """A part of a program. Times in nanoseconds of the driver's clock, virtual on a simulated GPU.

    `wall_ns` is from the moment that all threads began it to the moment that the last one left it.
    The other times are sums over the threads.
    """

    name: str
    wall_ns: float
    allocate_ns: float
    free_ns: float
    launch_ns: float
    """Of the host, to enqueue kernels and events."""
    wait_ns: float
    """The host waited for the card."""
    host_ns: float
    """The rest: the player's own steps, and waits of threads for one another."""
    allocations: int
    frees: int
    launches: int
    """Of kernels."""

    @staticmethod
    def of(
        name: str,
        *,
        threads: int,
        wall_ns: float,
        allocate_ns: float,
        free_ns: float,
        launch_ns: float,
        wait_ns: float,
        allocations: int,
        frees: int,
        launches: int,
    ) -> Section:
        """From what was measured of all threads: `host_ns` is what is left of their time."""
        host_ns = wall_ns * threads - allocate_ns - free_ns - launch_ns - wait_ns
        return Section(
            name,
            wall_ns,
            allocate_ns,
            free_ns,
            launch_ns,
            wait_ns,
            host_ns,
            allocations,
            frees,
            launches,
        )


class Played(msgspec.Struct, frozen=True):
    """What a program has cost. Sizes in bytes; held ones only where memory was measured."""

    sections: list[Section]
    """In the order of Program.sections; those that the program never enters are all zero."""
    peak_in_use: int
    """As it happened where memory was measured, else in the order of the program's steps."""
    peak_held: int | None = None
    average_held: float | None = None
    """Over the time of the clock."""
    end_held: int | None = None
    """When all blocks were freed and all threads had ended."""
    native: bool = False
    """Whether the native player did it: no Python is in the times then."""

    def section(self, name: str) -> Section:
        """Raises KeyError."""
        for section in self.sections:
            if section.name == name:
                return section
        raise KeyError(name)

    @property
    def total(self) -> Section:
        """All sections together."""
        totals = {
            field: sum(getattr(section, field) for section in self.sections)
            for field in Section.__struct_fields__[1:]
        }
        return Section("all", **totals)
