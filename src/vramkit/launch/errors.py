"""Why a program could not be started."""

from __future__ import annotations

from collections.abc import Sequence


class LaunchError(ValueError):
    """The program, or what is put before it, cannot be used as given."""


class ProgramNotFoundError(LaunchError):
    """There is no such program, or it may not be executed.

    `instead` is a command line that would start what was probably meant; empty where there is none.
    """

    def __init__(self, message: str, instead: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.instead = list(instead)
