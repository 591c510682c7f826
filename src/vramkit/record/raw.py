"""Reads the raw trace of one process, as native/gate/trace_record.h describes it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

MAGIC = b"vkGATE1\n"
HEADER = struct.Struct("<8sIIIIIIQQ512s1024s2512s")
RECORD = struct.Struct("<QQQQQIIiHBBQ")
CALL = 8  # which field of a record it is
LEGACY, PER_THREAD = 1, 2  # handles of the default streams


class Kind(IntEnum):
    ALLOCATION = 1
    FREE = 2
    HANDLE = 3
    HANDLE_RETAINED = 4
    HANDLE_RELEASED = 5
    MAPPING = 6
    UNMAPPING = 7
    LAUNCH = 8
    EVENT_RECORD = 9
    EVENT_WAIT = 10
    EVENT_DONE = 11
    STREAM_DONE = 12
    CONTEXT_DONE = 13
    CONTEXT = 14
    CONTEXT_RELEASED = 15
    CONTEXT_RESET = 16
    CONTEXT_DESTROYED = 17
    STREAM_DESTROYED = 18


GIVES_BACK = {
    Kind.FREE,
    Kind.HANDLE_RELEASED,
    Kind.UNMAPPING,
    Kind.CONTEXT_RELEASED,
    Kind.CONTEXT_RESET,
    Kind.CONTEXT_DESTROYED,
    Kind.STREAM_DESTROYED,
}


class RawRecord(NamedTuple):
    time_ns: int
    """Since the start of the recording."""
    stream: int
    """The handle; 0: the call takes none."""
    object: int
    bytes: int
    context: int
    thread: int
    repeats: int
    """So many like this, one after the other."""
    code: int
    call: str
    captured: bool
    kind: Kind


class RawTrace(NamedTuple):
    process: int
    parent: int
    start_unix_ns: int
    driver: str
    command: list[str]
    incomplete: bool
    """The file could not grow: the trace ends early."""
    records: list[RawRecord]
    """In order of time; what is given back comes before what is taken at the same time."""


class _Header(NamedTuple):
    magic: bytes
    header_bytes: int
    record_bytes: int
    chunk_bytes: int
    process: int
    parent: int
    incomplete: int
    start_ns: int
    start_unix_ns: int
    driver: bytes
    command: bytes
    calls: bytes


def read_raw(path: Path) -> RawTrace:
    """Raises ValueError for a file that is no raw trace. A record that a killed program had only
    begun to write is left out. A file without content is of a process that could not write any."""
    data = path.read_bytes()
    if not data.strip(b"\0"):
        process = int(path.name.partition(".")[0])
        return RawTrace(process, 0, path.stat().st_mtime_ns, "", [], True, [])
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise ValueError(f"{path} is not a raw trace of vramkit's gate")
    header = _Header(*HEADER.unpack_from(data))
    if (header.header_bytes, header.record_bytes) != (HEADER.size, RECORD.size):
        raise ValueError(f"{path} was written by another version of vramkit's gate")
    records = sorted(
        _records(data, header),
        key=lambda record: (record.time_ns, record.kind not in GIVES_BACK),
    )
    return RawTrace(
        process=header.process,
        parent=header.parent,
        start_unix_ns=header.start_unix_ns,
        driver=_texts(header.driver)[0],
        command=_texts(header.command),
        incomplete=bool(header.incomplete),
        records=records,
    )


def _texts(field: bytes) -> list[str]:
    return field.rstrip(b"\0").decode(errors="replace").split("\0")


def _records(data: bytes, header: _Header) -> Iterator[RawRecord]:
    calls = _texts(header.calls)
    for chunk in range(HEADER.size, len(data), header.chunk_bytes):
        whole = (min(chunk + header.chunk_bytes, len(data)) - chunk) // RECORD.size
        for fields in RECORD.iter_unpack(data[chunk : chunk + whole * RECORD.size]):
            record = RawRecord(*fields[:-1])
            if record.kind == 0:
                break
            yield record._replace(
                time_ns=record.time_ns - header.start_ns,
                call=calls[fields[CALL] // 2],
                captured=bool(record.captured),
                kind=Kind(record.kind),
            )
