"""Handles and addresses as small numbers, in the order in which they are first seen."""

from __future__ import annotations

from collections.abc import Hashable

from vramkit.record.raw import LEGACY, PER_THREAD, RawRecord


class Numbers:
    """A number for each key; a key that was dropped gets a new one."""

    def __init__(self, first: int = 0) -> None:
        self._known: dict[Hashable, int] = {}
        self._next = first

    def __call__(self, key: Hashable) -> int:
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = self._next
            self._next += 1
        return number

    def __len__(self) -> int:
        return self._next

    def drop(self, key: Hashable) -> None:
        self._known.pop(key, None)


class StreamNumbers:
    """0 is the legacy default stream, and that of calls without one."""

    def __init__(self) -> None:
        self._numbers = Numbers(first=1)

    def __call__(self, record: RawRecord) -> int:
        if record.stream in (0, LEGACY):
            return 0
        return self._numbers(_key(record))

    def __len__(self) -> int:
        return len(self._numbers)

    def destroyed(self, record: RawRecord) -> None:
        """The driver gives the same handle to a new stream."""
        self._numbers.drop(_key(record))


def _key(record: RawRecord) -> Hashable:
    # Each thread has a default stream of its own.
    return (PER_THREAD, record.thread) if record.stream == PER_THREAD else record.stream
