"""What the checker of the simulated GPU reports."""

from __future__ import annotations

from typing import Literal

import msgspec


class Site(msgspec.Struct):
    """One of the two sides of a report. `stream` None: the host itself."""

    call: str
    stream: int | None
    access: Literal["read", "write", "free", "alloc"]
    thread: str
    location: str
    frames: list[str] = []


class Report(msgspec.Struct):
    """Two accesses that nothing orders, or one that nothing allows; `count` times the same."""

    kind: Literal["race", "free_in_use", "use_after_free", "implicit_wait", "deadlock"]
    severity: Literal["error", "warning"]
    address: int
    nbytes: int
    first: Site
    second: Site
    advice: str
    count: int
