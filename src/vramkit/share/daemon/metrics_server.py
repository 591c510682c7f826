"""The metrics over HTTP, for Prometheus: one path, one answer a connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

SECONDS = 10.0
"""For one request and its answer; who is slower is cut off."""
LARGEST_REQUEST = 8192


class MetricsServer:
    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._server: asyncio.Server | None = None
        self._place = ("", 0)
        # Of two changes at once the later one is what counts, and nothing listens for the other.
        self._lock = asyncio.Lock()

    async def serve(self, host: str, port: int) -> None:
        """There from now on; port 0: nowhere. Where that is not possible the log says so."""
        async with self._lock:
            if (host, port) == self._place:
                return
            self.close()
            self._place = host, port
            if not port:
                return
            try:
                self._server = await asyncio.start_server(
                    self._answer, host, port, limit=LARGEST_REQUEST
                )
            except OSError as error:
                logger.error("no metrics at %s, port %d: %s", host, port, error)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                found = request.startswith((b"GET /metrics ", b"GET /metrics?"))
                # A name in the environment may have bytes that are no text.
                body = (self._text() if found else "not found\n").encode(errors="replace")
                head = (
                    f"HTTP/1.0 {'200 OK' if found else '404 Not Found'}\r\n"
                    "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            logger.debug("a request for metrics was not finished")
            writer.transport.abort()
