"""The plain format of tests/data: `+id,bytes,stream` and `-id`; read and written."""

from __future__ import annotations

import gzip
from pathlib import Path

from vramkit.lab.program import OWN_STREAM
from vramkit.lab.traces.content import Content, plain_name
from vramkit.lab.traces.trace import Kind, Trace, TraceBuilder

LONGEST = 60
"""Characters of a line with numbers of 64 bits, which have 20 digits at most."""
FORMS = {("+", 3), ("-", 1)}


def read_plain(content: Content) -> list[Trace]:
    builder = TraceBuilder(plain_name(content.path), "plain")
    for number, line in content.lines():
        try:
            _add(builder, line)
        except ValueError as error:
            raise content.wrong(_with_formats(error, number), number) from error
    return [builder.build()]


def _add(builder: TraceBuilder, line: str) -> None:
    sign, fields = line[:1], line[1:].split(",")
    plain = all(fields) and "".join(fields).isdecimal()
    if (sign, len(fields)) not in FORMS or not plain:
        raise ValueError(f"{line[:40]!r} is neither +id,bytes,stream nor -id")
    if len(line) > LONGEST:
        raise ValueError(f"'{line[:21]}...' has a number that is too large")
    if sign == "-":
        builder.free(int(fields[0]))
    else:
        builder.allocate(int(fields[0]), int(fields[1]), int(fields[2]))


def _with_formats(error: ValueError, line: int) -> str:
    """A file whose first line is wrong may be something else altogether."""
    if line > 1 or "neither" not in str(error):
        return str(error)
    return f"{error}; nor is it what `vramkit record`, PyTorch or RMM write"


def write_plain(trace: Trace, path: Path) -> None:
    """Compressed; the same bytes for the same trace, with neither a time nor a name among them.

    Reading it gives blocks, sizes, streams and their order again. Raises ValueError for a free on
    another stream than that of its block: the format has no place for it.
    """
    lines = []
    for kind, what, stream in zip(trace.kinds, trace.what, trace.streams, strict=True):
        if kind == Kind.ALLOCATE:
            lines.append(f"+{what},{trace.sizes[what]},{stream}\n")
        elif kind == Kind.FREE:
            if stream != OWN_STREAM:
                raise ValueError(f"block {what} is freed on stream {stream}, not on its own")
            lines.append(f"-{what}\n")
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        packed.write("".join(lines).encode())
