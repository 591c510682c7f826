"""A trace of every call, to be looked at and replayed later."""

from __future__ import annotations

import os
import weakref
from threading import get_native_id
from typing import TYPE_CHECKING

from vramkit import _core
from vramkit.driver.errors import OutOfMemoryError
from vramkit.resources.adaptors.adaptor import Adaptor, Held
from vramkit.resources.adaptors.trace import NO_STREAM, Operation, TraceWriter

if TYPE_CHECKING:
    from vramkit.resources.resource import Resource


class Recording(Adaptor):
    """Writes thread, stream, size, address and time of every call to a file; see read_trace().

    48 bytes for each call, written in pieces of 64 KiB, on flush() and on close(); at the latest
    when the program ends. An existing file is replaced.
    """

    def __init__(self, upstream: Resource, path: str | os.PathLike[str]) -> None:
        super().__init__(upstream)
        self._writer = TraceWriter(path)
        self._blocks = 0
        self._end = weakref.finalize(self, self._writer.close)

    def flush(self) -> None:
        """Write what is pending to the file."""
        self._require_open()
        with self._lock:
            self._writer.flush()

    def take(self, size: int, stream: object | None) -> int:
        try:
            return super().take(size, stream)
        except OutOfMemoryError:
            with self._lock:
                self._write(Operation.FAILED_MALLOC, size, 0, 0, stream)
            raise

    def allocated(self, address: int, size: int, stream: object | None) -> int:
        self._blocks += 1
        number = self._blocks
        try:
            self._write(Operation.MALLOC, size, address, number, stream)
        except OSError:
            self._write(Operation.FREE, size, address, number, stream)  # it is not handed out
            raise
        return number

    def freed(self, address: int, block: Held, stream: object | None) -> None:
        self._write(Operation.FREE, block.size, address, block.note, stream)

    def finish(self) -> None:
        with self._lock:
            self._end()

    def close(self) -> None:
        """As for all adaptors. If blocks are in use, the trace up to now is in the file."""
        try:
            if not self._closed:
                self.flush()
        finally:
            super().close()

    def _write(
        self, operation: Operation, size: int, address: int, block: int, stream: object | None
    ) -> None:
        number = NO_STREAM if stream is None else _core.stream_id(self.device, stream)
        self._writer.write(operation, get_native_id(), number, size, address, block)
