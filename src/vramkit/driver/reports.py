"""What the checker of the simulated GPU reports."""

from __future__ import annotations

from typing import Literal

import msgspec


class Site(msgspec.Struct):
    """One of the two sides of a report. `stream` None: the host itself."""

    call: str
    stream: int | None
    access: Literal["read", "write", "atomic", "free", "alloc"]
    thread: str
    location: str
    frames: list[str] = []


class Report(msgspec.Struct):
    """Two accesses that are not ordered, or one that is not allowed; seen `count` times."""

    kind: Literal[
        "race",
        "free_in_use",
        "use_after_free",
        "implicit_wait",
        "deadlock",
        "out_of_bounds",
        "overlapping_copy",
    ]
    severity: Literal["error", "warning"]
    address: int
    nbytes: int
    first: Site
    second: Site
    advice: str
    count: int


class UnsupportedCall(msgspec.Struct):
    """A driver call that the simulated GPU does not have. `missing`: cuGetProcAddress did not find
    it, which is harmless unless the program needs it; `not_supported`: called, and refused."""

    call: str
    reason: Literal["missing", "not_supported"]
    count: int
    thread: str
    location: str
    frames: list[str] = []


class LeftOpen(msgspec.Struct):
    """Memory that was not freed when the process ended: the call that allocated it, and from where.
    Only a note: the end of the process frees it."""

    call: str
    nbytes: int
    count: int
    thread: str
    location: str
    frames: list[str] = []
