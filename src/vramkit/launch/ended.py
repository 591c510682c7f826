"""How a program ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    """`status` is what a shell shows: the exit status, or 128 + the signal that ended the program.

    `stdout` and `stderr` are None where they were not captured.
    """

    status: int
    signal: str | None
    stdout: str | None = None
    stderr: str | None = None

    @classmethod
    def from_returncode(
        cls, returncode: int, stdout: str | None = None, stderr: str | None = None
    ) -> Ended:
        """`returncode` as subprocess gives it: negative for a signal."""
        if returncode >= 0:
            return cls(returncode, None, stdout, stderr)
        return cls(128 - returncode, _signal_name(-returncode), stdout, stderr)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
