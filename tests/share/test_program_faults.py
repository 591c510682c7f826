"""Programs and daemons that are killed, stopped, mute or wrong: nobody hangs, no result is lost."""

from __future__ import annotations

import itertools
import os
import signal
import struct
import time
from collections.abc import Callable
from datetime import datetime

import pytest
from soak import rounds

from vramkit.share import protocol
from vramkit.share.protocol import CREDIT_PAGE_BYTES, encode
from vramkit.share.status import ProgramStatus

from .fake_daemon import FakeDaemon, page
from .machine import MIB, Machine, Started, until

pytestmark = pytest.mark.sim_only

Natively = Callable[..., str]
ROUNDS = rounds(40, 400)
ENDLESS = 1_000_000
# 16 MiB of 40 move for a turn, in chunks of 10 MiB: half a second each way.
SLOW = 20e6


def moves_out(status: ProgramStatus) -> bool:
    swapped = sum(card.swapped for card in status.cards)
    return status.state in ("waiting", "stopped") and swapped > 0


def comes_in(status: ProgramStatus) -> bool:
    return status.state == "starting" and status.turns > 0


STATES: dict[str, Callable[[ProgramStatus], bool]] = {
    "running": lambda status: status.state == "running" and status.turns > 0,
    "waiting": lambda status: status.state == "waiting" and status.turns > 0,
    "swapping out": moves_out,
    "swapping in": comes_in,
}


def two(machine: Machine, count: int) -> tuple[Started, Started]:
    """The first one works without end; both do not fit together."""
    first = machine.start("rounds", 40, ENDLESS)
    machine.until(first, lambda status: status.turns)
    return first, machine.start("rounds", 40, count)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_program_that_is_killed(
    state: str, number: signal.Signals, machine: Machine, natively: Natively
) -> None:
    """The other one has the card to itself from then on."""
    machine.slow_link(SLOW)
    machine.start_daemon()
    victim, other = two(machine, ROUNDS)
    machine.until(victim, STATES[state])
    victim.kill(number)
    assert other.done().output == natively("rounds", 40, ROUNDS)
    until(lambda: machine.status().cards[0].held == 0, machine.status)


@pytest.mark.parametrize("state", STATES)
def test_a_program_that_is_stopped_for_a_while(
    state: str, machine: Machine, natively: Natively
) -> None:
    machine.slow_link(SLOW)
    machine.start_daemon(patience="200ms")
    first, second = two(machine, ROUNDS)
    machine.until(first, STATES[state])
    first.process.send_signal(signal.SIGSTOP)
    # What it has of the card is not to be had: the second one is told so, or can run.
    until(
        lambda: (
            second.process.poll() is not None
            or any(each.messages or each.passed_over for each in machine.status().programs)
        ),
        machine.status,
    )
    first.process.send_signal(signal.SIGCONT)
    assert second.done().output == natively("rounds", 40, ROUNDS)
    before = machine.find(first)
    assert before is not None
    machine.until(first, lambda status: status.cards[0].launches > before.cards[0].launches)


@pytest.mark.parametrize("again", [True, False], ids=["started_again", "gone_for_good"])
@pytest.mark.parametrize("state", STATES)
def test_a_daemon_that_is_killed(
    state: str, again: bool, machine: Machine, natively: Natively
) -> None:
    machine.slow_link(SLOW)
    machine.start_daemon()
    both = [machine.start("rounds", 40, 2 * ROUNDS) for _ in range(2)]
    machine.until(both[0], STATES[state])
    machine.kill_daemon()
    if again:
        machine.start_daemon()
    for each in both:
        assert each.done().output == natively("rounds", 40, 2 * ROUNDS)
        assert each.process.returncode == 0
    if again:
        until(lambda: machine.status().cards[0].held == 0, machine.status)


def test_a_daemon_is_awaited_before_anybody_moves(machine: Machine) -> None:
    """A second, by the log of a program that waited and had been connected for so long."""
    machine.start_daemon()
    both = [machine.start("rounds", 40, ENDLESS) for _ in range(2)]
    for each in both:
        machine.until(each, lambda status: status.turns)
    connected = time.monotonic()
    until(lambda: time.monotonic() > connected + 1.2)
    machine.kill_daemon()
    # One of the two had no turn, and makes room or finds it.
    until(lambda: any("no daemon" in each.log for each in both), lambda: [e.log for e in both])
    (waited, *_) = (each for each in both if "no daemon" in each.log)
    lost, helps = (
        datetime.fromisoformat(line.partition(" [")[0])
        for said in ("the connection with the daemon is lost", "no daemon")
        for line in [next(line for line in waited.log.splitlines() if said in line)]
    )
    assert (helps - lost).total_seconds() >= 0.99


def test_a_socket_that_is_removed(machine: Machine, natively: Natively) -> None:
    """Connections stand; the daemon makes the socket again for those that come."""
    machine.start_daemon()
    first, second = two(machine, ROUNDS)
    machine.socket.unlink()
    assert second.done().output == natively("rounds", 40, ROUNDS)
    until(machine.socket.exists)
    third = machine.start("rounds", 40, ROUNDS)
    assert third.done().output == natively("rounds", 40, ROUNDS)
    assert first.process.poll() is None


def test_work_that_never_ends_is_passed_over(machine: Machine) -> None:
    machine.start_daemon(patience="300ms")
    spins = machine.start("spins", 40, 60)
    machine.until(spins, lambda status: status.turns)
    until(lambda: "begins" in spins.output)
    waits = machine.start("rounds", 40, ROUNDS)
    machine.until(spins, lambda status: status.passed_over > 0)
    found = machine.find(spins)
    assert found is not None
    assert any("did not stop" in message for message in found.messages)
    assert waits.process.poll() is None


def test_host_memory_that_does_not_suffice(machine: Machine, natively: Natively) -> None:
    """A program that may keep nothing on the host keeps the card to its end, and says why."""
    machine.start_daemon(patience="300ms")
    both = [machine.start("rounds", 40, 5 * ROUNDS, host_limit=4 * MIB) for _ in range(2)]
    said: set[str] = set()

    def ended() -> bool:
        for each in machine.status().programs:
            said.update(each.messages)
        return all(each.process.poll() is not None for each in both)

    until(ended, machine.status)
    for each in both:
        assert each.done().output == natively("rounds", 40, 5 * ROUNDS)
    assert any("moving memory to the host" in text for text in said), said


def test_many_at_once(machine: Machine, natively: Natively) -> None:
    number = rounds(16, 64)
    # Each has a little of the card that is no memory of the program: that is what a reserve is for.
    reserve = 16 + 4 * number
    machine.capacity = (64 + reserve) * MIB
    machine.start_daemon(reserve=f"{reserve}MiB")
    programs = [machine.start("rounds", 8, ROUNDS // 4) for _ in range(number)]
    for each in programs:
        assert each.done().output == natively("rounds", 8, ROUNDS // 4)
    until(lambda: machine.status().cards[0].held == 0, machine.status)


# A daemon that is none


def raw(number: int, fields: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<IHH", 8 + len(fields) if length is None else length, number, 0) + fields


START = encode(protocol.Start(1))
STOP = encode(protocol.Stop(1))
SOURCE = encode(protocol.Source(0, 1, 2, 0, 20 * MIB))
WRONG: dict[str, list[bytes]] = {
    "a frame that is too long": [raw(66, length=1 << 20), b"x" * 5000],
    "a frame that is too short": [raw(66, length=3)],
    "an unknown number": [raw(999, b"abcd")],
    "a wrong length": [raw(66, b"abcd")],
    "half a frame": [START[:7], b""],
    "a card that there is not": [raw(65, struct.pack("<I16sQQ", 1 << 31, bytes(16), 1, 1))],
    "more than there can be": [raw(66, struct.pack("<IQ", 0, (1 << 64) - 1))],
    "evict while it runs": [START, encode(protocol.Evict(0, 1, 20 * MIB))],
    "start twice": [START, START, encode(protocol.Start(2))],
    "stop twice": [START, STOP, STOP, encode(protocol.Start(2))],
    "a stop that is taken back": [START, STOP, START, STOP, START, START],
    "fill while it runs": [START, encode(protocol.Fill(1)), encode(protocol.Fill(7))],
    "a source without a page": [START, SOURCE],
    "the end of no source": [encode(protocol.SourceEnded(0, 77, 5)), START],
    "prepare all memory": [START, encode(protocol.Prepare(1 << 60))],
    "refuse": [encode(protocol.Refuse("no"))],
    "a sudden end": [START, b""],
    "a sudden end before a turn": [b""],
}


@pytest.mark.parametrize("what", WRONG)
def test_a_daemon_that_is_wrong(what: str, machine: Machine, natively: Natively) -> None:
    fake = FakeDaemon(machine.socket, *WRONG[what])
    try:
        done = machine.start("rounds", 24, ROUNDS).done()
    finally:
        fake.close()
    assert (done.status, done.output) == (0, natively("rounds", 24, ROUNDS)), done
    assert fake.heard


def test_a_need_is_all_that_the_program_must_hold(machine: Machine) -> None:
    """The daemon goes by the last one alone, whatever it has promised and granted meanwhile. It is
    said once, and taken back when it is met."""
    giver = page()
    granted = 8 * MIB
    needs: list[int] = []

    def answers(message: protocol.Message) -> list[bytes]:
        nonlocal granted
        if not isinstance(message, protocol.Need):
            return []
        # What was promised comes to nothing; what is missing now crosses whatever it says next.
        ends = [] if needs else [encode(protocol.SourceEnded(0, 1, 0))]
        needs.append(message.bytes)
        lacking = message.bytes - granted
        if lacking <= 0:
            return ends
        granted += lacking
        return [*ends, encode(protocol.Grant(0, lacking))]

    fake = FakeDaemon(machine.socket, (SOURCE, giver), grants=granted, answers=answers)
    try:
        machine.start("rounds", 24, ENDLESS)
        until(lambda: granted >= 24 * MIB and needs[-1] == 0, lambda: (granted, fake.heard))
    finally:
        fake.close()
        os.close(giver)
    assert all(before != after for before, after in itertools.pairwise(needs)), needs


@pytest.mark.parametrize("gate", ["running", "starting"])
def test_an_eviction_that_crosses_a_reconnection(
    gate: str, machine: Machine, natively: Natively
) -> None:
    """A daemon that does not know yet how the gate stands asks for memory: a program that runs
    moves nothing, one that was told to start by the daemon before moves it. Nobody hangs up."""
    moved: list[int] = []
    # What is lacking keeps it in `starting`.
    granted = 80 * MIB if gate == "running" else 8 * MIB

    def answers(message: protocol.Message) -> list[bytes]:
        again = fake.connections > 1
        match message:
            case protocol.Running() if gate == "running" and not again:
                return [b""]
            case protocol.Need() if message.bytes > granted and not again:
                return [encode(protocol.Stop(1))]
            case protocol.Stopped() if not again:
                # Of a daemon that was there for less the program would not await the next one.
                time.sleep(1.1)
                fake.grants = 0
                return [encode(protocol.Start(2)), b""]
            case protocol.Device() if again:
                return [encode(protocol.Evict(0, 2, MIB))]
            case protocol.Moved():
                moved.append(message.bytes)
                return [encode(protocol.Grant(0, 80 * MIB)), encode(protocol.Start(3))]
        return []

    fake = FakeDaemon(machine.socket, grants=granted, answers=answers)
    # One that runs must not be done before it is asked.
    count = ENDLESS if gate == "running" else ROUNDS
    try:
        program = machine.start("rounds", 24, count)
        until(lambda: moved, lambda: fake.heard)
        if gate == "starting":
            done = program.done()
            assert (done.status, done.output) == (0, natively("rounds", 24, count)), done
    finally:
        fake.close()
    assert fake.connections == 2
    assert len(moved) == 1 and (moved[0] > 0) == (gate == "starting")


@pytest.mark.parametrize("size", [0, 100, CREDIT_PAGE_BYTES])
def test_a_page_that_is_none(size: int, machine: Machine, natively: Natively) -> None:
    """Too short, or of a file that could become so."""
    handle = page(size) if size < CREDIT_PAGE_BYTES else os.memfd_create("page", 0)
    if size == CREDIT_PAGE_BYTES:
        os.ftruncate(handle, size)
    fake = FakeDaemon(machine.socket, START, (SOURCE, handle))
    try:
        os.ftruncate(handle, 0) if size == CREDIT_PAGE_BYTES else None
        done = machine.start("rounds", 24, ROUNDS).done()
    finally:
        fake.close()
        os.close(handle)
    assert (done.status, done.output) == (0, natively("rounds", 24, ROUNDS)), done


def test_a_daemon_that_says_nothing(machine: Machine, natively: Natively) -> None:
    """It costs a program a moment at its start, and no more."""
    fake = FakeDaemon(machine.socket, greets=False)
    try:
        done = machine.start("rounds", 24, ROUNDS).done()
    finally:
        fake.close()
    assert (done.status, done.output) == (0, natively("rounds", 24, ROUNDS)), done
