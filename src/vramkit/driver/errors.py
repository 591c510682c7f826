"""The exceptions of the driver layer."""

from __future__ import annotations


class DriverError(RuntimeError):
    """A driver call failed. `code` and `name` are the driver's, `call` is the symbol called."""

    def __init__(self, call: str, code: int, name: str, meaning: str) -> None:
        super().__init__(call, code, name, meaning)
        self.call = call
        self.code = code
        self.name = name
        self.meaning = meaning

    def __str__(self) -> str:
        return f"{self.call} failed: {self.name} ({self.code}): {self.meaning}"


class OutOfMemoryError(DriverError, MemoryError):
    """The driver does not have enough memory for the call."""


class DriverNotFoundError(RuntimeError):
    """There is no driver library to open."""


class ClosedError(RuntimeError):
    """An object was used after close(), a reset of the simulated GPU, or in a forked child."""
