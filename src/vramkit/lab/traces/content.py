"""Reads a file of a foreign kind without trust: bounded, unpacked where it is compressed."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

from vramkit.lab.traces.trace import TraceError

MOST_BYTES = 4 << 30
"""Of a file, unpacked: a small file can hold a thousand times its size."""
LONGEST_LINE = 8192
GZIP = b"\x1f\x8b"
HEAD = 64
UNREADABLE = (OSError, EOFError, zlib.error)


class Content:
    """An open file. All that it raises is TraceError, which names the file."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self._head = b""
        self._head = self._read(HEAD)

    @property
    def head(self) -> bytes:
        """The first bytes; fewer than HEAD where the file ends."""
        return self._head

    def wrong(self, why: object, line: int | None = None) -> TraceError:
        where = "" if line is None else f", line {line}"
        return TraceError(f"{self.path}{where}: {why}")

    def whole(self, most: int) -> bytes:
        """All of it. Once; not after lines()."""
        pieces, total = [self._head], len(self._head)
        while piece := self._read(1 << 20):
            pieces.append(piece)
            total += len(piece)
            if total > most:
                raise self.wrong(f"it has more than {most:,} bytes, unpacked; too many to be read")
        return b"".join(pieces)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number and text, without their ends. Once; not after whole()."""
        total, number, rest = 0, 0, self._head
        while True:
            number += 1
            line, rest = self._line(rest)
            if not line:
                return
            total += len(line)
            if total > MOST_BYTES:
                raise self.wrong(f"it has more than {MOST_BYTES:,} bytes, unpacked; too many")
            if len(line) > LONGEST_LINE:
                raise self.wrong(
                    f"the line has more than {LONGEST_LINE:,} bytes; no trace has such lines",
                    number,
                )
            try:
                text = line.decode("ascii")
            except UnicodeDecodeError as error:
                at = error.start
                raise self.wrong(
                    f"the byte {line[at]:#04x} at column {at + 1}; a trace is ASCII text", number
                ) from error
            yield number, text.removesuffix("\n").removesuffix("\r")
            if not line.endswith(b"\n"):
                raise self.wrong(
                    "the line has no end: the file was cut off there",
                    number,
                )

    def _line(self, rest: bytes) -> tuple[bytes, bytes]:
        """The next line with its end, and what of the head is left after it."""
        if rest:
            start, end, after = rest.partition(b"\n")
            if end:
                return start + end, after
        try:
            return rest + self._file.readline(LONGEST_LINE + 1), b""
        except UNREADABLE as error:
            raise _unreadable(self.path, error) from error

    def _read(self, count: int) -> bytes:
        try:
            return self._file.read(count)
        except UNREADABLE as error:
            raise _unreadable(self.path, error) from error


@contextmanager
def opened(path: Path) -> Iterator[Content]:
    """Raises TraceError for what is no file, or cannot be read."""
    try:
        # Opening a device or a pipe can already do something, or wait.
        if not stat.S_ISREG(os.stat(path).st_mode):
            kind = "a folder" if path.is_dir() else "no plain file"
            raise TraceError(f"{path}: that is {kind}; a trace is a file")
        raw = path.open("rb")
    except (OSError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        raise _unreadable(path, error) from error
    with raw:
        file: IO[bytes] = raw
        if raw.peek(2).startswith(GZIP):
            unpacked = gzip.GzipFile(fileobj=raw, mode="rb")
            file = BufferedReader(cast("IO[bytes]", unpacked), 1 << 16)  # type: ignore[type-var]
        content = Content(path, file)
        if not content.head:
            raise content.wrong("the file is empty")
        yield content


def _unreadable(path: Path, error: BaseException) -> TraceError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return TraceError(f"{str(path).replace(chr(0), '?')}: cannot be read: {reason}")


def plain_name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv")
