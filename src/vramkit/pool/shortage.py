"""A callback that a pool asks for memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from vramkit import Pool


class ShortageCallback:
    """What Pool.on_shortage() returns. After close(), or a with statement, the callback is not
    called any more, and no call of it is under way on another thread."""

    def __init__(self, pool: Pool, number: int) -> None:
        self._pool, self._number = pool, number

    def close(self) -> None:
        """Waits for calls of it that other threads are in. Twice is harmless."""
        self._pool._remove_shortage_callback(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()
