"""What an integration asks of a resource of vramkit: the raw pair, and the device it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vramkit.driver import Device


class Source(Protocol):
    """A Pool, and every other resource with its malloc and free."""

    @property
    def device(self) -> Device: ...

    def malloc(self, size: int, stream: object | None = None) -> int: ...

    def free(self, address: int, size: int | None = None, stream: object | None = None) -> None: ...
