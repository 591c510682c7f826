"""What tests of the daemon ask it over its socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from vramkit.share import protocol
from vramkit.share.connect import Controls
from vramkit.share.status import Status

from .client import FakeClient
from .conftest import Running

MakeClient = Callable[..., FakeClient]


def status(path: Path) -> Status:
    with Controls(path) as controls:
        return controls.status()


def free(daemon: Running) -> int:
    (card,) = status(daemon.path).cards
    assert card.held + card.free == card.budget
    return card.free


def raw(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(20)
    sock.connect(str(path))
    return sock


def answer(sock: socket.socket) -> str:
    """The reason of a refusal; the connection must end behind it."""
    decoder = protocol.Decoder("daemon")
    texts = []
    try:
        while data := sock.recv(4096):
            decoder.feed(data)
            texts += [each.text for each in decoder.messages() if isinstance(each, protocol.Refuse)]
    except ConnectionResetError:
        pass
    return " ".join(texts)
