"""What an allocator that takes part in an experiment has to offer.

A subject
1. says by missing() why it cannot take part here, in one line, and never imports anything for it
   that could start a driver; an empty text: it can;
2. opens a new allocator for each repetition, at the settings that its makers recommend, and
   gives all memory back when that is closed;
3. takes exactly the memory of `Room.limit` where it has such a setting, else says "unlimited" by
   `can_be_limited`: then it has no row where a limit is the question;
4. raises vramkit.OutOfMemoryError for a lack of memory, whatever its own error is called.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver, Stream
    from vramkit.resources import Resource


@dataclass(frozen=True)
class Room:
    """The memory for a workload. Sizes in bytes."""

    peak_in_use: int
    """What the workload has in use at most."""
    limit: int | None = None
    """What the allocator may take; None: all that is free."""
    size: int | None = None
    """What an allocator takes that must be given a size; None: as its makers recommend."""


class Allocator(Protocol):
    """An open allocator. Handles are whatever it likes; each is freed once."""

    @property
    def resource(self) -> Resource | None:
        """One written in C++, which the native player can use; else None."""
        ...

    def allocate(self, size: int, stream: Stream) -> object: ...

    def free(self, handle: object, size: int, stream: Stream) -> None: ...

    def address(self, handle: object) -> int: ...

    def held(self) -> int | None:
        """Bytes taken from the driver now; None: it cannot tell."""
        ...


class Subject(Protocol):
    @property
    def name(self) -> str:
        """In commands, files and tables: `pool`, `rmm_pool`."""
        ...

    @property
    def title(self) -> str:
        """With its settings, in a line: "RMM's pool, half of the free memory at first"."""
        ...

    @property
    def ours(self) -> bool: ...

    @property
    def needs_size(self) -> bool:
        """It is given a size when it is made: a wrong one is the user's problem."""
        ...

    @property
    def can_be_limited(self) -> bool: ...

    def missing(self, driver: Driver) -> str: ...

    def open(self, device: Device, room: Room) -> AbstractContextManager[Allocator]: ...
