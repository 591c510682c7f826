"""What an integration asks of a resource of vramkit: the raw pair, and the device it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from vramkit.driver import Device


@runtime_checkable
class Source(Protocol):
    """A Pool, and every other resource with its malloc and free."""

    @property
    def device(self) -> Device: ...

    def malloc(self, size: int, stream: object | None = None) -> int: ...

    def free(self, address: int, size: int | None = None, stream: object | None = None) -> None: ...


Given = TypeVar("Given", bound=Source)


def usable_source(given: Given) -> Given:
    """Raises TypeError for what is none."""
    if isinstance(given, type) or not isinstance(given, Source):
        raise TypeError(f"{given!r} is no resource of vramkit, such as a Pool")
    return given
