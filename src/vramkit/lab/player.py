"""Goes through a program on an allocator, and measures what it costs: time, or memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from vramkit.driver import Device
    from vramkit.lab.program import Program
    from vramkit.lab.subjects.subject import Allocator

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


def play(
    program: Program,
    allocator: Allocator,
    device: Device,
    *,
    measure: Measure = "time",
    raw_streams: bool = False,
) -> Played:
    """Does the steps of a program on threads, streams and events of its own.

    measure="time" reads nothing of the allocator on the way. measure="memory" reads what it holds
    after each allocation and each free; the times include that then. With `raw_streams` the
    allocator gets each stream as a handle of somebody else's, as PyTorch and CuPy would pass it.

    Raises OutOfMemoryError, which says at which step, and whatever else goes wrong; every block is
    freed and every thread has ended then. An interrupt (Ctrl-C) ends it in the same way.
    """
    if measure not in ("time", "memory"):
        raise ValueError(f'measure is {measure!r}; it may be "time" or "memory"')
    from vramkit.lab.python_player import PythonPlayer

    return PythonPlayer(program, allocator, device, measure, raw_streams).play()
