"""Who may connect to the daemon, and what may be sent."""

from __future__ import annotations

import fcntl
import os
import socket
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak import rounds

from vramkit.share import protocol
from vramkit.share.connect import Controls, DaemonError
from vramkit.share.daemon.connection import Peer
from vramkit.share.daemon.credit_page import CreditPage
from vramkit.share.protocol import encode

from .client import CARD, GIB, until
from .conftest import Running
from .daemon_sockets import MakeClient, answer, free, raw, status

HELLO = protocol.Hello(protocol.VERSION, os.getpid(), 7, 1000, 0, 0, 0, "raw")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff" * 64, "no message 65535"),
        (encode(protocol.Want(0)), "want comes before hello"),
        (encode(HELLO) * 2, "hello is not allowed here"),
        (encode(protocol.Hello(1, 1, 7, 1000, 0, 0, 0, "")), f"speaks version {protocol.VERSION}"),
        (encode(HELLO) + encode(protocol.Stopped(5)), ""),
        (encode(HELLO) + encode(protocol.Need(3, 5)), "card 3 was not named"),
        (encode(HELLO) + encode(protocol.Device(CARD, 1 << 30, 0)) * 2, "has an account"),
        (encode(HELLO) + encode(protocol.Moved(0, 0, 5)), "card 0 was not named"),
        (encode(protocol.Control()) + b"x" * (70 << 10), "longer than 65536 bytes"),
    ],
)
def test_what_may_not_be_sent_ends_the_connection(daemon: Running, data: bytes, said: str) -> None:
    with raw(daemon.path) as sock:
        sock.sendall(data)
        if said:
            assert said in answer(sock)
    status(daemon.path)


def test_a_foreign_user_is_refused(daemon: Running) -> None:
    daemon.peer = lambda sock: Peer(1, os.getuid() + 1, 0)
    with raw(daemon.path) as sock:
        assert f"serves user {os.getuid()} only" in answer(sock)


def test_counters_that_make_no_sense_end_the_connection(
    daemon: Running, clients: MakeClient
) -> None:
    cheat, other = clients(), clients()
    cheat.start(4 * GIB)
    until(lambda: cheat.running_said, [cheat])
    cheat.give(100 * GIB)
    cheat.usage()
    until(lambda: cheat.refused, [cheat])
    assert "more than it held" in cheat.refused
    assert free(daemon) <= 22 * GIB
    other.start(4 * GIB)
    until(lambda: other.running_said, [other])


def test_a_client_that_never_reads_is_cut_off(daemon: Running, clients: MakeClient) -> None:
    with raw(daemon.path) as sock:
        sock.sendall(encode(protocol.Control()))
        sock.setblocking(False)
        end = time.monotonic() + 20
        try:
            while time.monotonic() < end:
                try:
                    sock.send(b'{"command": "settings"}\n' * 100)
                except BlockingIOError:
                    time.sleep(0.001)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert time.monotonic() < end
    status(daemon.path)


def test_requests_that_make_no_sense_are_answered(daemon: Running) -> None:
    with Controls(daemon.path) as controls:
        for words, said in (
            ({"command": "dance"}, "no command 'dance'"),
            ({"command": "configure", "name": "speed", "value": "1"}, "no setting speed"),
            ({"command": "configure", "name": "quantum", "value": "-1"}, "quantum is '-1'"),
        ):
            with pytest.raises(DaemonError, match=said):
                controls.ask(**words)
    with raw(daemon.path) as sock:
        sock.sendall(encode(protocol.Control()) + b"[1]\n")
        assert b"no JSON object" in sock.recv(4096)


@given(st.lists(st.binary(max_size=80), max_size=4), st.booleans())
@settings(
    max_examples=rounds(25, 100_000),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_garbage_hurts_nobody(daemon: Running, pieces: list[bytes], greeted: bool) -> None:
    with raw(daemon.path) as sock:
        try:
            if greeted:
                sock.sendall(encode(HELLO))
            for piece in pieces:
                sock.sendall(piece)
            sock.shutdown(socket.SHUT_WR)
            answer(sock)
        except OSError:
            pass
    assert status(daemon.path).daemon.pid == os.getpid()


def test_a_credit_page_cannot_be_resized_nor_written_by_readers() -> None:
    page = CreditPage.make()
    with pytest.raises(PermissionError):
        os.ftruncate(page.writable, 0)
    with pytest.raises(OSError):
        os.write(page.readable, b"x")
    assert fcntl.fcntl(page.readable, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL
    os.pwrite(page.writable, (5).to_bytes(8, "little"), 16)
    assert [page.given(card) for card in range(4)] == [0, 0, 5, 0]
    page.close()
