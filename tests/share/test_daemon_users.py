"""A daemon of the whole machine, whose users do not trust each other."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from vramkit.share import protocol
from vramkit.share.connect import Controls, DaemonError
from vramkit.share.daemon import server
from vramkit.share.daemon.connection import Peer
from vramkit.share.daemon.nvml import Nvml
from vramkit.share.protocol import encode
from vramkit.share.status import Status

from .client import CARD, GIB, FakeClient, until
from .conftest import Running
from .daemon_sockets import answer, raw, status


class OneCard(Nvml):
    """What NVML says on a machine with one card."""

    def count(self) -> int:
        return 1

    def total(self, uuid: bytes) -> int | None:
        return 24 * GIB if uuid == CARD else None


class SystemDaemon(Running):
    """The user of whoever connects is what the test says."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.clients: list[FakeClient] = []

    def become(self, user: int, pid: int | None = None) -> None:
        """`pid`: 0 is a process in a PID namespace that the daemon does not see."""
        known = os.getpid() if pid is None else pid
        self.peer = lambda sock: Peer(known, user, 54321)

    def client(self, user: int, **options: object) -> FakeClient:
        self.become(user)
        number = 1000 + len(self.clients)
        made = FakeClient(self.path, **{"ticks": number, **options})  # type: ignore[arg-type]
        made.connect()
        self.clients.append(made)
        return made

    def raw(self, user: int, data: bytes = b"", pid: int | None = None) -> socket.socket:
        """A connection that has sent this, and has an answer to read. Without data: a refusal."""
        self.become(user, pid)
        sock = raw(self.path)
        if data:
            sock.sendall(data)
        assert sock.recv(1, socket.MSG_PEEK)
        return sock

    def status_of(self, user: int) -> Status:
        self.become(user)
        return status(self.path)

    def metrics(self) -> str:
        self.become(ADMIN)
        with Controls(self.path) as controls:
            return str(controls.ask("metrics"))


ADMIN, MINE, FOREIGN = os.getuid(), 70001, 70002


@pytest.fixture
def system(folder: Path) -> Iterator[SystemDaemon]:
    running = SystemDaemon(folder / "daemon.sock")
    running.start(system=True, settings_file=folder / "config.json", nvml=OneCard())
    folder.chmod(0o755)
    try:
        yield running
    finally:
        for client in running.clients:
            client.close()
        running.stop()


def hello(pid: int = 7, start_ticks: int = 7) -> bytes:
    return encode(protocol.Hello(protocol.VERSION, pid, start_ticks, 1000, 0, 0, 0, "foreign"))


def test_with_a_system_daemon_users_are_apart(system: SystemDaemon) -> None:
    system.client(MINE, name="mine")
    assert [each.name for each in system.status_of(MINE).programs] == ["mine"]
    with (
        Controls(system.path) as controls,
        pytest.raises(DaemonError, match="only root and the members"),
    ):
        controls.ask("configure", name="quantum", value="1")
    assert system.status_of(FOREIGN).programs == []
    with Controls(system.path) as controls, pytest.raises(DaemonError, match="only root"):
        controls.ask("stop")


@pytest.mark.parametrize("held", [1 << 60, 25 * GIB, 13 * GIB])
def test_memory_that_others_hold_cannot_be_claimed(system: SystemDaemon, held: int) -> None:
    mine = system.client(MINE)
    mine.start(12 * GIB)
    until(lambda: mine.running_said, [mine])
    claim = hello() + encode(protocol.Device(CARD, 24 * GIB, held))
    with system.raw(FOREIGN, claim) as sock:
        assert "cannot be held already" in answer(sock)
    (card,) = system.status_of(ADMIN).cards
    assert card.held == 12 * GIB
    assert not any(isinstance(each, (protocol.Stop, protocol.Evict)) for each in mine.received)


def test_memory_that_is_not_held_takes_nothing_from_the_limits_of_others(
    system: SystemDaemon,
) -> None:
    mine, foreign = system.client(MINE), system.client(FOREIGN)
    foreign.say(protocol.Usage(foreign.card, 0, 0, 0, 1 << 60, 0, 0, 0, 0))
    until(lambda: system.status_of(ADMIN).programs[1].cards[0].unswappable, [mine, foreign])
    mine.start(20 * GIB)
    until(lambda: mine.running_said, [mine, foreign])
    assert mine.told_limit == 22 * GIB


def test_no_answer_to_what_others_say_is_too_large_to_send(
    system: SystemDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """As an order to prepare host memory: those behind it would be lost."""
    mine, foreign = system.client(MINE), system.client(FOREIGN)
    mine.start(12 * GIB)
    until(lambda: mine.running_said, [mine, foreign])
    foreign.say(protocol.Usage(foreign.card, 1 << 60, 1 << 60, 0, 0, 0, 0, 0, 0))
    foreign.say(protocol.Need(foreign.card, 1 << 60))
    foreign.say(protocol.Want(0))
    until(lambda: system.status_of(ADMIN).programs[1].blocked, [mine, foreign])
    assert not [each for each in caplog.records if each.name == "asyncio"]
    other = system.client(MINE)
    other.start(4 * GIB)
    until(lambda: other.running_said, [mine, other])


def test_a_card_has_as_much_memory_as_nvml_says(system: SystemDaemon) -> None:
    system.client(FOREIGN, total=1)
    assert system.client(MINE).budget == 22 * GIB


def test_a_simulated_card_is_its_users_own(system: SystemDaemon) -> None:
    """Which NVML does not know: nobody else can say how much memory it has."""
    unknown = bytes(16)
    system.client(FOREIGN, uuid=unknown, total=1)
    mine = system.client(MINE, uuid=unknown, total=8 * GIB)
    assert mine.budget == 7 * GIB
    assert [each.total for each in system.status_of(MINE).cards] == [8 * GIB]
    assert [each.owner for each in system.status_of(ADMIN).cards] == [FOREIGN, MINE]
    series = system.metrics().splitlines()
    names = [each.rpartition(" ")[0] for each in series if not each.startswith("#")]
    assert len(names) == len(set(names))


def test_invented_cards_take_no_place_from_others(system: SystemDaemon) -> None:
    def devices(first: int, count: int) -> bytes:
        numbers = range(first, first + count)
        return b"".join(encode(protocol.Device(bytes([n] * 16), GIB, 0)) for n in numbers)

    for first in range(0, 64, 16):  # the places of those that are gone can be had again
        with system.raw(FOREIGN, hello() + devices(first, 16), pid=0) as sock:
            assert "no place for more" in answer(sock)
        until(lambda: not system.status_of(FOREIGN).programs, [])
    with system.raw(FOREIGN, hello() + devices(64, 7)):
        until(lambda: len(system.status_of(FOREIGN).programs[-1].cards) == 7, [])
        assert system.client(MINE).budget == 22 * GIB
        assert system.client(MINE, uuid=bytes(16)).budget


@pytest.mark.parametrize("pid", [None, 0], ids=["same namespace", "another namespace"])
def test_nobody_takes_a_process_of_another_user_for_his_own(
    system: SystemDaemon, pid: int | None
) -> None:
    mine = system.client(MINE)
    mine.start(12 * GIB)
    until(lambda: mine.running_said, [mine])
    mine.lost()
    until(lambda: system.status_of(ADMIN).programs[0].state == "lost", [])
    claim = hello(pid=os.getpid(), start_ticks=mine.ticks) + encode(protocol.Want(0))
    with system.raw(FOREIGN, claim, pid):
        until(lambda: len(system.status_of(ADMIN).programs) == 2, [])
        lost, foreign = system.status_of(ADMIN).programs
        assert (lost.state, lost.cards[0].held) == ("lost", 12 * GIB)
        assert foreign.cards == []


def test_labels_are_those_of_a_process_that_the_daemon_sees(system: SystemDaemon) -> None:
    """Not those of another one, whose number a process in a container says is its own."""
    environment = {**os.environ, "RAY_JOB_ID": "01000000"}
    with subprocess.Popen(["sleep", "60"], env=environment) as other:
        try:
            for pid, labelled in ((other.pid, True), (0, False)):
                named = hello(pid=other.pid) + encode(protocol.Device(CARD, GIB, 0))
                with system.raw(FOREIGN, named, pid) as sock:
                    until(lambda: "vramkit_program_held_bytes{" in system.metrics(), [])
                    assert ('ray_job="01000000"' in system.metrics()) == labelled
                    sock.sendall(encode(protocol.Bye()))
                    until(lambda: not system.status_of(ADMIN).programs, [])
        finally:
            other.kill()


def test_a_user_leaves_connections_to_others(
    system: SystemDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 8)
    asked = encode(protocol.Control()) + b'{"command": "settings"}\n'
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(system.raw(FOREIGN, asked))
        for _ in range(2):  # lost ones count: their process is there
            system.client(FOREIGN).close()
        # Nobody else may connect to ask for it.
        until(lambda: all(e.send is None for e in system.server.sharing.clients.values()), [])
        refused = stack.enter_context(system.raw(FOREIGN))
        assert "too many connections: 4 of user 70002, 4 of all" in answer(refused)
        for user in (MINE, MINE, ADMIN):
            assert system.client(user).budget


def test_a_daemon_has_descriptors_for_all_connections(
    folder: Path, daemon_process: Callable[[], subprocess.Popen[bytes]]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"no process may have more than {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        daemon = daemon_process()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    now, _ = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    assert now >= 3 * server.MOST_CONNECTIONS


def test_weight_and_priority_of_users_are_bounded_by_the_administrator(
    system: SystemDaemon,
) -> None:
    def ranks() -> list[tuple[float, int]]:
        return [(each.weight, each.priority) for each in system.status_of(ADMIN).programs]

    system.client(FOREIGN, weight=1000.0, priority=1000)
    system.client(MINE, weight=0.5, priority=-5)
    system.client(ADMIN, weight=3.0, priority=7)
    assert ranks() == [(1, 0), (0.5, -5), (3, 7)]
    (foreign,) = system.status_of(FOREIGN).programs
    assert foreign.messages == [
        "its weight is 1 instead of 1000: that is max_weight here",
        "its priority is 0 instead of 1000: that is max_priority here",
    ]
    system.become(ADMIN)
    system.configure(max_weight="2.5", max_priority="10")
    assert ranks() == [(2.5, 10), (0.5, -5), (3, 7)]


def test_root_of_a_container_is_no_administrator_of_a_fixed_daemon(system: SystemDaemon) -> None:
    system.server.fixed = True
    system.client(ADMIN, weight=3.0, priority=7)
    (found,) = system.status_of(ADMIN).programs
    assert (found.weight, found.priority) == (1, 0)


def test_what_others_say_is_no_line_of_the_log_and_no_code_of_a_terminal(
    system: SystemDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = system.client(FOREIGN, name="né\nclient 1: \x1b[2J")
    foreign.say(protocol.Failed(1, foreign.card, "no\rroom \u202e"))
    until(lambda: system.status_of(FOREIGN).programs[0].messages, [foreign])
    (found,) = system.status_of(ADMIN).programs
    assert (found.name, found.messages) == ("né?client 1: ?[2J", ["no?room ?"])
    assert all(each.getMessage().isprintable() for each in caplog.records)


def test_the_smaller_limit_holds(system: SystemDaemon) -> None:
    system.become(ADMIN)
    system.configure(limit="8GiB")
    large, small = system.client(MINE, limit=20 * GIB), system.client(MINE, limit=2 * GIB)
    assert (large.told_limit, small.told_limit) == (8 * GIB, 2 * GIB)


@pytest.mark.parametrize("message", [protocol.Want, protocol.Running, protocol.Idle])
def test_a_turn_without_a_next_one_is_refused(
    system: SystemDaemon, message: Callable[[int], protocol.Message]
) -> None:
    mine = system.client(MINE)
    last = encode(message(protocol.MOST_COUNT)) + encode(protocol.Want(0))
    with system.raw(FOREIGN, hello() + last) as sock:
        assert "there was no turn" in answer(sock)
    mine.start(4 * GIB)
    until(lambda: mine.running_said, [mine])
