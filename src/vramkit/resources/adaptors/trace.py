"""The binary trace of allocations: its layout, its writer and its reader.

Little-endian. A header of 24 bytes: the magic, the version, the size of a record, and the time of
the start in nanoseconds since 1970. Then records of 48 bytes, in the order in which the calls
returned. A record that a killed program left incomplete at the end is skipped.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from enum import IntEnum
from io import FileIO
from pathlib import Path
from typing import NamedTuple

MAGIC = b"vkTRACE\n"
VERSION = 1
HEADER = struct.Struct("<8sIIQ")
RECORD = struct.Struct("<BxxxIQQQQQ")
NO_STREAM = 2**64 - 1
WRITTEN_AT = 1 << 16  # bytes that are collected before they are written


class Operation(IntEnum):
    MALLOC = 1
    FREE = 2
    FAILED_MALLOC = 3


class TraceEvent(NamedTuple):
    """One call."""

    operation: Operation
    thread: int
    """The system's id of the thread."""
    stream: int | None
    """Id of the stream that was given; None: the legacy default one, or that of the allocation."""
    size: int
    address: int
    """0 if the malloc failed."""
    block: int
    """Number of the allocation, from 1 on: the same in its malloc and its free. 0: it failed."""
    time_ns: int
    """Since the start of the recording."""


class TraceWriter:
    """Writes a trace. Not thread-safe: the caller holds a lock.

    What could not be written stays pending: the file continues where it ended, in whole records.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = FileIO(path, "wb")
        self._process = os.getpid()
        self._start = time.monotonic_ns()
        self._pending = bytearray(HEADER.pack(MAGIC, VERSION, RECORD.size, time.time_ns()))
        self._write_at = WRITTEN_AT

    def write(
        self, operation: Operation, thread: int, stream: int, size: int, address: int, block: int
    ) -> None:
        """Keeps the record even if it raises OSError."""
        now = time.monotonic_ns() - self._start
        self._pending += RECORD.pack(operation, thread, stream, size, address, block, now)
        if len(self._pending) >= self._write_at:
            self.flush()

    def flush(self) -> None:
        # A forked child has a copy of the pending records; the parent writes them.
        if os.getpid() != self._process or self._file.closed:
            return
        try:
            while self._pending:
                del self._pending[: self._file.write(self._pending)]
        finally:
            # With a full disk, not every later call should fail.
            self._write_at = len(self._pending) + WRITTEN_AT

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()


def read_trace(path: str | os.PathLike[str]) -> Iterator[TraceEvent]:
    """The events of a trace, in order. Raises ValueError at once for a file that is not a trace."""
    return parse_trace(Path(path).read_bytes(), path)


def parse_trace(data: bytes, path: str | os.PathLike[str]) -> Iterator[TraceEvent]:
    """The same of the content of a file."""
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise ValueError(f"{os.fspath(path)} is not a trace of vramkit")
    _, version, record_size, _ = HEADER.unpack_from(data)
    if version != VERSION or record_size != RECORD.size:
        raise ValueError(
            f"{os.fspath(path)} is a trace of version {version} with records of {record_size} "
            f"bytes; this vramkit reads version {VERSION} with {RECORD.size}"
        )
    return _events(memoryview(data)[HEADER.size :])


def _events(records: memoryview) -> Iterator[TraceEvent]:
    whole = len(records) // RECORD.size * RECORD.size
    for operation, thread, stream, size, address, block, at in RECORD.iter_unpack(records[:whole]):
        given = None if stream == NO_STREAM else stream
        yield TraceEvent(Operation(operation), thread, given, size, address, block, at)
