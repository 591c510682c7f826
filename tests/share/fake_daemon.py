"""A daemon that says to real programs what a test wants it to say."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from vramkit.share import protocol
from vramkit.share.protocol import CREDIT_PAGE_BYTES, encode

from .machine import MIB


def page(size: int = CREDIT_PAGE_BYTES) -> int:
    """A credit page, as a file."""
    handle = os.memfd_create("page", os.MFD_ALLOW_SEALING)
    os.ftruncate(handle, size)
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return handle


class FakeDaemon:
    """Takes connections, greets, tells a card, and then says what it was given, to each of them."""

    def __init__(
        self,
        path: Path,
        *frames: bytes | tuple[bytes, int],
        greets: bool = True,
        grants: int = 80 * MIB,
        answers: Callable[[protocol.Message], list[bytes]] = lambda message: [],
    ) -> None:
        """`answers`: to what it hears, beside what it says by itself. An empty frame hangs up."""
        self.frames, self.greets, self.grants, self.answers = frames, greets, grants, answers
        self.heard: list[protocol.Message] = []
        self.connections = 0
        self.starts = True  # whether who wants a turn gets one
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listening.bind(str(path))
        self.path = path
        self.listening.listen()
        self.listening.settimeout(0.05)
        self.ends = False
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while not self.ends:
            try:
                connection, _ = self.listening.accept()
            except TimeoutError:
                continue
            self.connections += 1
            with connection:
                connection.settimeout(0.05)
                try:
                    self.talk(connection)
                except (BrokenPipeError, ConnectionResetError):
                    continue

    def talk(self, connection: socket.socket) -> None:
        decoder = protocol.Decoder("client")
        while not self.ends:
            try:
                data = connection.recv(1 << 16)
            except TimeoutError:
                continue
            if not data:
                return
            decoder.feed(data)
            for message in decoder.messages():
                self.heard.append(message)
                if isinstance(message, protocol.Hello) and self.greets:
                    own = page()
                    welcome = encode(protocol.Welcome(protocol.VERSION, 1))
                    socket.send_fds(connection, [welcome], [own])
                    os.close(own)
                if isinstance(message, protocol.Device):
                    size = 80 * MIB
                    connection.sendall(encode(protocol.Card(0, message.uuid, size, size)))
                    if self.grants:
                        connection.sendall(encode(protocol.Grant(0, self.grants)))
                    for frame in self.frames:
                        if isinstance(frame, tuple):
                            socket.send_fds(connection, [frame[0]], [frame[1]])
                        else:
                            connection.sendall(frame)
                        if not frame:
                            return
                if isinstance(message, protocol.Want) and self.starts:
                    connection.sendall(encode(protocol.Start(message.turn + 1)))
                for frame in self.answers(message):
                    connection.sendall(frame)
                    if not frame:
                        return

    def close(self) -> None:
        self.ends = True
        self.thread.join()
        self.listening.close()
        self.path.unlink()
