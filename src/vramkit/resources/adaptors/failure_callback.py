"""A second chance when memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vramkit.driver.errors import OutOfMemoryError
from vramkit.resources.adaptors.adaptor import Adaptor

if TYPE_CHECKING:
    from vramkit.resources.resource import Resource


class FailureCallback(Adaptor):
    """Calls `function(size)` when the upstream is out of memory: True means try again.

    It is called after every failed attempt and ends them by returning False; then the
    OutOfMemoryError is raised. It may free and allocate blocks; an exception in it goes to the
    caller of malloc. Several threads may be in it at once.
    """

    def __init__(self, upstream: Resource, function: Callable[[int], bool]) -> None:
        if not callable(function):
            raise TypeError(f"function is {function!r}; it must be callable with the size")
        super().__init__(upstream)
        self._function = function

    def take(self, size: int, stream: object | None) -> int:
        while True:
            try:
                return super().take(size, stream)
            except OutOfMemoryError:
                if not self._function(size):
                    raise
