"""What is done ahead of a switch: host memory is pinned, queues are bounded, memory comes in."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from vramkit.share import protocol
from vramkit.share.protocol import encode

from .fake_daemon import FakeDaemon
from .machine import MIB, Machine, Started, until

pytestmark = pytest.mark.sim_only

Natively = Callable[..., str]
ENDLESS = 1_000_000
ROUNDS = 400
SIZE = 24
BLOCK = SIZE * MIB // 4
AWAY = 3 * BLOCK  # blocks leave as a whole
EVICT = encode(protocol.Evict(0, 1, AWAY))
STOP = encode(protocol.Stop(1))
RESULTS = 2 * MIB  # a page more, at the end


def grant(nbytes: int) -> bytes:
    return encode(protocol.Grant(0, nbytes))


def has_all(message: protocol.Message) -> bool:
    return isinstance(message, protocol.Usage) and message.resident >= SIZE * MIB


def happens(condition: Callable[[], bool]) -> bool:
    """Waits for it on a daemon's thread, where nothing may be raised."""
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def test_host_memory_is_pinned_before_the_first_switch(
    machine: Machine, natively: Natively, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much as the last order says, which comes while the first one is followed; the switch pins
    no more."""
    monkeypatch.setenv("CALLS", "1")
    pinned: list[bool] = []
    moved: list[int] = []

    def answers(message: protocol.Message) -> list[bytes]:
        match message:
            case protocol.Usage() if fake.starts and not moved and has_all(message):
                fake.starts = False
                return [*(encode(protocol.Prepare(nbytes)) for nbytes in (BLOCK, AWAY)), STOP]
            case protocol.Stopped():
                pinned.append(happens(lambda: program.pinned == AWAY))
                return [EVICT]
            case protocol.Moved():
                moved.append(message.bytes)
                fake.starts = True
                return [grant(AWAY + RESULTS), encode(protocol.Start(2))]
        return []

    fake = FakeDaemon(machine.socket, grants=SIZE * MIB, answers=answers)
    try:
        program = machine.start("rounds", SIZE, ROUNDS)
        done = program.done()
    finally:
        fake.close()
    assert (done.status, done.output) == (0, natively("rounds", SIZE, ROUNDS)), done
    assert (pinned, moved) == ([True], [AWAY])
    assert max(each.swapped for each in fake.heard if isinstance(each, protocol.Usage)) == AWAY
    assert json.loads(done.errors)["cuMemHostRegister_v2"] == 2


def test_memory_comes_in_before_the_turn(machine: Machine, natively: Natively) -> None:
    """A Fill is no Start: what was moved out comes back, and nothing is launched until then."""
    stopped: list[protocol.Usage] = []
    filled: list[protocol.Usage] = []

    def answers(message: protocol.Message) -> list[bytes]:
        match message:
            case protocol.Usage() if fake.starts and not filled and has_all(message):
                fake.starts = False
                return [STOP]
            case protocol.Stopped():
                return [EVICT]
            case protocol.Usage() if not fake.starts and message.swapped == AWAY and not stopped:
                stopped.append(message)
                return [encode(protocol.Fill(2)), grant(AWAY)]
            case protocol.Usage() if stopped and not filled and has_all(message):
                filled.append(message)
                fake.starts = True
                return [grant(RESULTS), encode(protocol.Start(2))]
        return []

    fake = FakeDaemon(machine.socket, grants=SIZE * MIB, answers=answers)
    try:
        done = machine.start("rounds", SIZE, ROUNDS).done()
    finally:
        fake.close()
    assert (done.status, done.output) == (0, natively("rounds", SIZE, ROUNDS)), done
    (before,), (after,) = stopped, filled
    assert (after.in_bytes - before.in_bytes, after.swapped) == (AWAY, 0)
    assert after.launches == before.launches
    assert [each.turn for each in fake.heard if isinstance(each, protocol.Running)] == [1, 2]


@pytest.mark.parametrize("expected", [True, False])
def test_a_queue_is_bounded_where_turns_are_expected(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, expected: bool
) -> None:
    """By an event for many launches; there is none where all programs fit."""
    monkeypatch.setenv("CALLS", "1")
    said = [encode(protocol.Prepare(1))] if expected else []
    fake = FakeDaemon(machine.socket, *said)
    try:
        done = machine.start("rounds", SIZE, ROUNDS).done()
    finally:
        fake.close()
    calls = json.loads(done.errors)
    # 4 launches a round, and the distance of looks is doubled at most: 8, 8, 16, 32 ...
    assert calls["cuLaunchKernel"] >= 4 * ROUNDS
    looks = calls.get("cuEventRecord", 0)
    assert looks >= 7 if expected else looks == 0


# The daemon itself

SHORTFALL = 16 * MIB


def two(machine: Machine) -> tuple[Started, Started]:
    """The first one works, in a turn that does not end. The other lacks 16 MiB of its 40."""
    machine.start_daemon(quantum="10min")
    first = machine.start("rounds", 40, ENDLESS)
    machine.until(first, lambda now: any(card.resident >= 40 * MIB for card in now.cards))
    return first, machine.start("spins", 40, 60)


def test_a_shortfall_that_is_forecast_is_pinned_before_anything_moves(machine: Machine) -> None:
    first, second = two(machine)
    until(lambda: (first.pinned, second.pinned) == (SHORTFALL, SHORTFALL), machine.status)
    found = machine.find(first)
    assert found is not None
    assert (found.turns, found.cards[0].out_bytes) == (1, 0)


def test_what_has_room_comes_in_while_the_other_computes(machine: Machine) -> None:
    first, second = two(machine)
    machine.until(second, lambda now: any(card.resident > 0 for card in now.cards))
    before, waits = machine.find(first), machine.find(second)
    assert before is not None and waits is not None
    assert (waits.state, waits.turns) == ("waiting", 0)
    machine.until(first, lambda now: now.cards[0].launches > before.cards[0].launches)
    after = machine.find(first)
    assert after is not None
    assert (after.turns, after.cards[0].out_bytes) == (1, 0)
