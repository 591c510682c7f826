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
LONG = 2_000  # replays: the program still works when it is stopped


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


def test_a_stop_waits_for_the_end_of_a_capture(
    machine: Machine, natively: Callable[..., str]
) -> None:
    """And room comes meanwhile. Then the gate closes: the program asks for its next turn."""
    asked: list[int] = []

    def answers(message: protocol.Message) -> list[bytes]:
        if isinstance(message, protocol.Need) and message.bytes > BEFORE and not asked:
            asked.append(message.bytes)
            return [encode(protocol.Stop(1)), encode(protocol.Grant(0, 32 * MIB))]
        return []

    fake = FakeDaemon(machine.socket, grants=BEFORE, answers=answers)
    try:
        done = machine.start("graph_allocates", LONG).done()
    finally:
        fake.close()
    assert (done.status, done.output) == (0, natively("graph_allocates", LONG)), done
    assert [each.turn for each in fake.heard if isinstance(each, protocol.Running)] == [1, 2]


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
