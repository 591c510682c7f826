"""How far a long run is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """For a progress bar."""

    done: int
    of: int
    what: str
    seconds_left: float | None
    """Estimated from what took how long so far; None at first."""
