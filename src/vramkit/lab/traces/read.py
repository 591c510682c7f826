"""Reads any file of a recorded program, by what it begins with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vramkit.lab.traces import plain, recorded, recording, rmm, snapshot
from vramkit.lab.traces.content import Content, opened
from vramkit.lab.traces.trace import Trace
from vramkit.record.raw import MAGIC as RAW

READERS: dict[bytes, Callable[[Content], list[Trace]]] = {
    b"\x80": snapshot.read_snapshot,  # a pickle of protocol 2 or later
    recorded.MAGIC: recorded.read_recorded,
    recording.MAGIC: recording.read_recording,
    rmm.HEADER[:16]: rmm.read_rmm,
}
OTHERS = {
    RAW: "a raw trace of the gate: `vramkit record` turns it into one when the program has ended",
    b"PK\x03\x04": "an archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it first (gzip is read as it is)",
    b"\xfd7zXZ": "compressed by xz; unpack it first (gzip is read as it is)",
    b"{": "JSON, which is no format of traces",
    b"[": "JSON, which is no format of traces",
}


def read_traces(path: Path) -> list[Trace]:
    """The traces in a file: one, or one for each process and device that has blocks.

    Raises TraceError for whatever is no trace. No more than some gigabytes of memory are taken,
    whatever the file holds, and no code of it is run.
    """
    with opened(path) as content:
        for start, other in OTHERS.items():
            if content.head.startswith(start):
                raise content.wrong(f"it is {other}")
        traces = _reader(content)(content)
        if not any(trace.allocations for trace in traces):
            raise content.wrong("nothing was allocated")
        return traces


def _reader(content: Content) -> Callable[[Content], list[Trace]]:
    for start, read in READERS.items():
        if content.head.startswith(start):
            return read
    signs = content.head.startswith((b"+", b"-"))
    if not signs and (b"\0" in content.head or not content.head.isascii()):
        raise content.wrong(
            "neither a trace of vramkit, nor a PyTorch memory snapshot, nor a log of RMM"
        )
    return plain.read_plain
