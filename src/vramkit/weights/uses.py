"""Which groups of weights must stay where they are: those that streams use, and those pinned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramkit.weights.layout import Group

if TYPE_CHECKING:
    from vramkit.driver.types import SupportsCudaStream


class Uses:
    """A use begins when a stream waits for a group, and ends when its work has been issued. Several
    streams may use a group, and one stream several times."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._streams: dict[int, list[SupportsCudaStream]] = {}
        self.pinned: set[int] = set()

    def begin(self, number: int, stream: SupportsCudaStream) -> None:
        self._streams.setdefault(number, []).append(stream)

    def end(self, number: int, stream: SupportsCudaStream) -> None:
        """`stream` is the one that find() has returned."""
        streams = self._streams[number]
        del streams[next(at for at, each in enumerate(streams) if each is stream)]

    def count(self, number: int) -> int:
        return len(self._streams.get(number, ()))

    def any(self) -> bool:
        """Whether a stream uses a group."""
        return any(self._streams.values())

    def stays(self, number: int) -> bool:
        return self.count(number) > 0 or number in self.pinned

    def find(self, number: int, given: SupportsCudaStream | None) -> SupportsCudaStream | None:
        """The stream whose use is to end; None: there is none, and the group is pinned. Raises
        ValueError where the group is neither in use nor pinned, not in use on this stream, or no
        stream is given and several use it."""
        group, streams = self._groups[number], self._streams.get(number, [])
        if not streams:
            if number in self.pinned:
                return None
            raise ValueError(f"group {group} is not in use")
        if given is None:
            if any(not _same(streams[0], other) for other in streams[1:]):
                raise ValueError(
                    f"several streams use group {group}: release() needs compute_stream"
                )
            return streams[0]
        for stream in streams:
            if _same(stream, given):
                return stream
        raise ValueError(f"group {group} is not in use on this stream")


def _same(one: SupportsCudaStream, other: SupportsCudaStream) -> bool:
    # A stream of ours that has given its handle away asks the driver for its capture and its id at
    # every later use: two calls more for each wait and release.
    return one is other or one.__cuda_stream__() == other.__cuda_stream__()
