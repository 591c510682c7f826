"""Metrics over HTTP, for Prometheus: one path, whoever asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
LARGEST_REQUEST = 8192


class MetricsServer:
    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._server: asyncio.Server | None = None
        self._place = ("", 0)

    async def serve(self, host: str, port: int) -> None:
        """Here from now on, and at no other place; port 0: nowhere."""
        if (host, port) == self._place:
            return
        self.close()
        self._place = host, port
        if port:
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
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_SECONDS)
            found = request.startswith(b"GET /metrics ")
            body = self._text() if found else "not found\n"
            head = (
                f"HTTP/1.0 {'200 OK' if found else '404 Not Found'}\r\n"
                "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                f"Content-Length: {len(body.encode())}\r\n\r\n"
            )
            writer.write((head + body).encode())
            await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            logger.debug("a request for metrics was not finished")
        finally:
            writer.close()
