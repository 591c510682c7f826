"""What a recorded run came to."""

from __future__ import annotations

from pathlib import Path

import msgspec


class ProcessSummary(msgspec.Struct, frozen=True):
    """One process of the program. Sizes in bytes."""

    process: int
    command: list[str]
    driver: str
    """The library behind the gate."""
    allocations: int
    frees: int
    failed: int
    """Allocations that the driver refused."""
    unknown_frees: int
    """Frees of memory that came from a call that is not recorded."""
    launches: int
    peak_bytes: int
    bytes_at_end: int
    """What the program had not freed."""
    threads: int
    streams: int
    complete: bool
    """False: the disk was full, and the trace ends early."""


class RecordResult(msgspec.Struct, frozen=True):
    """`status` is what a shell shows: the exit status, or 128 + the signal that ended it."""

    program: list[str]
    status: int
    signal: str | None
    trace: Path
    processes: list[ProcessSummary]
    stdout: str | None = None
    stderr: str | None = None
