"""Traces of allocations: which block was asked for and freed when; read, built and written.

A file has one line an event: `+id,bytes,stream` asks for a block, `-id` frees it on its own stream.
It may be compressed by gzip. What `vramkit record` writes has more fields and other lines (see
docs/gate.md): of these the blocks are read. PyTorch's memory snapshots are read too: see
torch_snapshot.py.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path

LARGEST = 1 << 40  # bytes; what a pool serves at most
RECORDED = b"# vramkit trace 2\n"


class TraceError(ValueError):
    """A file that is no trace; says where it is wrong."""


@dataclass(frozen=True)
class Trace:
    """What a program asked for, in order. Blocks and streams are numbered from 0 as they come."""

    name: str
    sizes: list[int]
    """Bytes of each block, as asked for."""
    streams: list[int]
    """The stream of each block."""
    events: list[int]
    """A block that is allocated; its complement (~block) where it is freed."""
    stream_count: int
    peak_in_use: int
    """The largest sum of the sizes of live blocks."""


@dataclass
class TraceBuilder:
    """Collects events. Keys name live blocks; a key may be used again once its block is freed."""

    name: str
    sizes: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    live: dict[Hashable, int] = field(default_factory=dict)
    stream_numbers: dict[Hashable, int] = field(default_factory=dict)
    in_use: int = 0
    peak_in_use: int = 0

    def allocate(self, key: Hashable, size: int, stream: Hashable) -> None:
        if key in self.live:
            raise ValueError(f"block {key} is allocated again before it is freed")
        if not 1 <= size <= LARGEST:
            raise ValueError(f"block {key} has {size} bytes; it may have 1 to 2^40")
        block = self.live[key] = len(self.sizes)
        self.sizes.append(size)
        self.streams.append(self.stream_numbers.setdefault(stream, len(self.stream_numbers)))
        self.events.append(block)
        self.in_use += size
        self.peak_in_use = max(self.peak_in_use, self.in_use)

    def free(self, key: Hashable) -> None:
        block = self.live.pop(key, None)
        if block is None:
            raise ValueError(f"block {key} is freed, but not in use")
        self.events.append(~block)
        self.in_use -= self.sizes[block]

    def free_all(self) -> None:
        for key in list(self.live):
            self.free(key)

    def build(self) -> Trace:
        return Trace(
            self.name,
            self.sizes,
            self.streams,
            self.events,
            len(self.stream_numbers),
            self.peak_in_use,
        )


def read_traces(path: Path) -> list[Trace]:
    """The trace in a file; of a snapshot, and of a recording, one for each process and device with
    events. Raises TraceError."""
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TraceError(f"{path}: cannot be read: {reason}") from error
    if content.startswith(b"\x80"):  # how a pickle of protocol 2 or later begins
        from torch_snapshot import read_snapshot

        return read_snapshot(path, content)
    if content.startswith(RECORDED):
        return parse_recorded(path, content)
    return [parse(path, content)]


def write_trace(trace: Trace, path: Path) -> None:
    """Compressed; the same bytes for the same trace, with neither a time nor a name among them."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        for event in trace.events:
            line = f"-{~event}"
            if event >= 0:
                line = f"+{event},{trace.sizes[event]},{trace.streams[event]}"
            packed.write(f"{line}\n".encode())


def plain_name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv")


def parse_recorded(path: Path, content: bytes) -> list[Trace]:
    """A trace for each process and device, in the order in which they begin."""
    builders: dict[tuple[str, str], TraceBuilder] = {}
    devices: dict[str, TraceBuilder] = {}  # of live blocks
    process = ""
    for number, line in enumerate(content.decode("ascii", "replace").splitlines(), 1):
        fields = line[1:].split(",")
        try:
            if line.startswith("@"):
                process = fields[0]
            elif line.startswith("+"):
                block, size, stream, _, _, device, _ = fields
                name = f"{plain_name(path)}, process {process}, device {device}"
                builder = builders.setdefault((process, device), TraceBuilder(name))
                builder.allocate(int(block), int(size), int(stream))
                devices[block] = builder
            elif line.startswith("-"):
                if fields[0] not in devices:
                    raise ValueError(f"block {fields[0]} is freed, but not in use")
                devices.pop(fields[0]).free(int(fields[0]))
        except ValueError as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
    if not builders:
        raise TraceError(f"{path}: nothing was allocated")
    if len(builders) == 1:
        next(iter(builders.values())).name = plain_name(path)
    return [builder.build() for builder in builders.values()]


def parse(path: Path, content: bytes) -> Trace:
    builder = TraceBuilder(plain_name(path))
    try:
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: neither a trace nor a PyTorch memory snapshot") from error
    if not lines:
        raise TraceError(f"{path}: the file is empty")
    for number, line in enumerate(lines, 1):
        try:
            add_line(builder, line)
        except ValueError as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
    return builder.build()


def add_line(builder: TraceBuilder, line: str) -> None:
    sign, fields = line[:1], line[1:].split(",")
    if not all(text.isdecimal() for text in fields) or (sign, len(fields)) not in FORMS:
        raise ValueError(f"{line[:40]!r} is neither +id,bytes,stream nor -id")
    if sign == "-":
        builder.free(int(fields[0]))
    else:
        block, size, stream = map(int, fields)
        builder.allocate(block, size, stream)


FORMS = {("+", 3), ("-", 1)}
