"""What a capture allocates has memory at once, as what is recorded with it needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vramkit.share import protocol
from vramkit.share.protocol import encode

from .fake_daemon import FakeDaemon
from .machine import MIB, Machine

pytestmark = pytest.mark.sim_only

BEFORE = 2 * MIB  # what the program has when the capture begins


def test_room_for_it_is_awaited(machine: Machine, natively: Callable[..., str]) -> None:
    """The daemon gives credits when it hears that they are lacking."""
    lacking: list[int] = []

    def answers(message: protocol.Message) -> list[bytes]:
        if isinstance(message, protocol.Need) and message.bytes > BEFORE and not lacking:
            lacking.append(message.bytes)
            return [encode(protocol.Grant(0, 32 * MIB))]
        return []

    fake = FakeDaemon(machine.socket, grants=BEFORE, answers=answers)
    try:
        done = machine.start("graph_allocates", 5).done()
    finally:
        fake.close()
    assert (done.status, done.output) == (0, natively("graph_allocates", 5)), done
    assert lacking


def test_it_does_not_wait_for_ever(machine: Machine) -> None:
    """Nobody has room: the program gets the error of the copy that it records, and the log says
    why, once for all that the capture allocates."""
    fake = FakeDaemon(machine.socket, grants=BEFORE)
    try:
        done = machine.start("graph_allocates", 5).done()
    finally:
        fake.close()
    assert (done.status, done.output) == (3, "cuMemcpyDtoDAsync_v2: 1\n"), done
    assert done.log.count("no room for memory that a capture has allocated") == 1
