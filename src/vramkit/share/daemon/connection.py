"""One peer on the socket: bytes in, frames and descriptors out, never waiting."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# A peer that leaves so much unread is cut off.
MOST_UNREAD = 1 << 20
READ_BYTES = 64 << 10
# So much of one peer before others have their turn.
READS_AT_ONCE = 4


@dataclass(frozen=True)
class Peer:
    pid: int
    uid: int
    gid: int


def peer_of(sock: socket.socket) -> Peer:
    """Who connected, by the kernel's word. Raises OSError."""
    layout = struct.Struct("3i")
    return Peer(*layout.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)))


class Connection:
    """`received` gets bytes as they come, `ended` is called once, when the peer is gone.

    Descriptors that a peer sends are dropped by the kernel: nothing here takes any.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: Peer,
        received: Callable[[Connection, bytes], None],
        ended: Callable[[Connection], None],
    ) -> None:
        sock.setblocking(False)
        self.peer = peer
        self._sock = sock
        self._received, self._ended = received, ended
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._unread = 0
        self._writing = False
        self._closing = False
        self.closed = False
        self._loop.add_reader(sock.fileno(), self._read)

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends now, or later in this order. The descriptors are duplicated, and may be closed."""
        if self.closed or self._closing:
            return
        self._outbox.append((data, tuple(os.dup(each) for each in descriptors)))
        self._unread += len(data)
        if not self._writing:
            self._write()
        if self._unread > MOST_UNREAD:
            self.close()

    def close_after_sending(self) -> None:
        """What was sent goes out, nothing is received any more."""
        self._closing = True
        if not self.closed:
            self._loop.remove_reader(self._sock.fileno())
            if not self._outbox:
                self.close()
            else:
                self._loop.call_later(1.0, self.close)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        number = self._sock.fileno()
        self._loop.remove_reader(number)
        self._loop.remove_writer(number)
        self._sock.close()
        while self._outbox:
            for each in self._outbox.popleft()[1]:
                os.close(each)
        self._ended(self)

    def _read(self) -> None:
        for _ in range(READS_AT_ONCE):
            try:
                data = self._sock.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._received(self, data)
            if self.closed or self._closing:
                return

    def _write(self) -> None:
        while self._outbox:
            data, descriptors = self._outbox[0]
            try:
                if descriptors:
                    sent = socket.send_fds(self._sock, [data], descriptors)
                else:
                    sent = self._sock.send(data)
            except BlockingIOError:
                break
            except OSError:
                self._loop.call_soon(self.close)
                return
            for each in descriptors:
                os.close(each)
            self._unread -= sent
            if sent < len(data):
                self._outbox[0] = data[sent:], ()
            else:
                self._outbox.popleft()
        waiting = bool(self._outbox)
        if waiting and not self._writing:
            self._loop.add_writer(self._sock.fileno(), self._write)
        elif not waiting and self._writing:
            self._loop.remove_writer(self._sock.fileno())
        self._writing = waiting
        if self._closing and not waiting:
            self.close()
