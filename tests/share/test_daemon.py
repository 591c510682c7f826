"""The daemon over real sockets and credit pages, with clients played in Python."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak import rounds

from vramkit.share import paths, protocol
from vramkit.share.connect import Controls, DaemonError, NoDaemonError
from vramkit.share.daemon import server
from vramkit.share.daemon.connection import Peer
from vramkit.share.daemon.credit_page import CreditPage
from vramkit.share.daemon.nvml import Nvml
from vramkit.share.protocol import encode
from vramkit.share.settings import ShareSettings
from vramkit.share.status import Status

from .client import CARD, GIB, FakeClient, until
from .conftest import Running

MakeClient = Callable[..., FakeClient]


def status(path: Path) -> Status:
    with Controls(path) as controls:
        return controls.status()


def free(daemon: Running) -> int:
    (card,) = status(daemon.path).cards
    assert card.held + card.free == card.budget
    return card.free


def test_two_that_fit_run_at_once(daemon: Running, clients: MakeClient) -> None:
    first, second = clients(), clients()
    first.start(8 * GIB)
    second.start(12 * GIB)
    until(lambda: first.running_said and second.running_said, [first, second])
    assert not any(isinstance(each, protocol.Stop) for each in first.received + second.received)
    assert {each.state for each in status(daemon.path).programs} == {"running"}
    assert free(daemon) == (22 - 20) * GIB


def test_two_that_do_not_take_turns_and_hand_memory_over(
    daemon: Running, clients: MakeClient
) -> None:
    daemon.configure(quantum="0.05", budget="20GiB")
    first, second = clients(), clients()
    first.start(12 * GIB)
    second.start(12 * GIB)
    until(lambda: min(first.turn, second.turn) >= 5, [first, second])
    evictions = [
        each.bytes for each in first.received + second.received if isinstance(each, protocol.Evict)
    ]
    assert set(evictions) == {4 * GIB}
    assert any(isinstance(each, protocol.Source) for each in first.received)
    assert first.resident + second.resident <= 20 * GIB
    told = status(daemon.path)
    assert all(each.turns >= 4 for each in told.programs)
    assert sum(each.cards[0].held for each in told.programs) == 20 * GIB


def test_an_allocation_that_waits_has_its_turn(daemon: Running, clients: MakeClient) -> None:
    daemon.configure(quantum="0.05", budget="20GiB")
    first, second = clients(), clients()
    first.start(8 * GIB)
    second.start(8 * GIB)
    until(lambda: first.running_said and second.running_said, [first, second])
    first.allocate(8 * GIB)
    until(lambda: first.pending == 0, [first, second])
    assert first.resident == 16 * GIB
    until(lambda: second.running_said and second.turn > 1, [first, second])


def test_an_idle_program_gives_way_at_once(daemon: Running, clients: MakeClient) -> None:
    daemon.configure(quantum="1h", budget="20GiB")
    first, second = clients(), clients()
    first.start(12 * GIB)
    until(lambda: first.running_said, [first])
    second.start(12 * GIB)
    first.idle()
    until(lambda: second.running_said, [first, second])


def test_a_program_that_never_stops_is_passed_over(daemon: Running, clients: MakeClient) -> None:
    daemon.configure(quantum="0.05", patience="0.1", budget="20GiB")
    stubborn, other = clients(yields=False), clients()
    stubborn.start(12 * GIB)
    until(lambda: stubborn.running_said, [stubborn])
    other.start(12 * GIB)
    until(lambda: status(daemon.path).programs[0].passed_over >= 2, [stubborn, other])
    assert "passed over" in status(daemon.path).programs[0].messages[0]
    stubborn.bye()
    until(lambda: other.running_said, [other])


def test_memory_of_a_program_that_ended_is_free(daemon: Running, clients: MakeClient) -> None:
    first, second = clients(), clients()
    first.start(12 * GIB)
    second.start(12 * GIB)
    until(lambda: first.running_said or second.running_said, [first, second])
    first.bye()
    until(lambda: second.running_said, [second])
    second.bye()
    until(lambda: not status(daemon.path).programs, [])
    assert free(daemon) == 22 * GIB


@pytest.mark.parametrize("patience", ["1h", "0.1"])
def test_nobody_is_called_blocked_by_a_program_that_ends(
    daemon: Running, clients: MakeClient, patience: str
) -> None:
    """It keeps what it holds until its process has ended. One that does not end, as the test's, is
    awaited for as long as patience lasts."""
    daemon.configure(patience=patience)
    ends, waits = clients(), clients()
    ends.start(12 * GIB)
    until(lambda: ends.running_said, [ends])
    ends.leave()
    until(lambda: status(daemon.path).programs[0].state == "ending", [])
    assert free(daemon) == 10 * GIB
    waits.start(12 * GIB)
    until(lambda: status(daemon.path).programs[1].state == "waiting", [waits])
    if patience == "0.1":
        until(lambda: status(daemon.path).programs[1].blocked, [waits])
    else:
        assert not status(daemon.path).programs[1].blocked
        assert status(daemon.path).programs[1].messages == []


def test_limits_are_told_and_told_again(daemon: Running, clients: MakeClient) -> None:
    limited, other = clients(limit=6 * GIB), clients()
    assert (limited.budget, limited.told_limit) == (22 * GIB, 6 * GIB)  # 24 less the reserve
    assert other.told_limit == 22 * GIB
    daemon.configure(budget="10GiB", limit="8GiB")
    until(lambda: other.told_limit == 8 * GIB, [limited, other])
    assert (limited.budget, limited.told_limit) == (10 * GIB, 6 * GIB)


def test_a_lost_connection_keeps_its_memory_until_the_process_comes_back(
    daemon: Running, clients: MakeClient
) -> None:
    client = clients()
    client.start(12 * GIB)
    until(lambda: client.running_said, [client])
    client.lost()
    until(lambda: status(daemon.path).programs[0].state == "lost", [])
    assert free(daemon) == 10 * GIB
    client.connect()
    until(lambda: status(daemon.path).programs[0].state == "running", [client])
    assert len(status(daemon.path).programs) == 1
    assert free(daemon) == 10 * GIB


def test_memory_of_a_returning_program_is_nobody_elses(
    daemon: Running, clients: MakeClient
) -> None:
    """Between its hello and what it holds, others get nothing of it."""
    client, other = clients(), clients()
    client.start(12 * GIB)
    until(lambda: client.running_said, [client])
    client.lost()
    until(lambda: status(daemon.path).programs[0].state == "lost", [])
    with raw(daemon.path) as sock:
        sock.sendall(
            encode(protocol.Hello(protocol.VERSION, 1, client.ticks, 1000, 0, 0, 0, "back"))
        )
        until(lambda: status(daemon.path).programs[-1].name == "back", [other])
        other.start(20 * GIB)
        until(
            lambda: other.resident == 10 * GIB or status(daemon.path).programs[0].blocked, [other]
        )
        assert free(daemon) <= 10 * GIB
        assert other.resident <= 10 * GIB
        sock.sendall(encode(protocol.Device(CARD, 24 * GIB, 2 * GIB)))
        until(lambda: other.running_said, [other])


def test_a_process_that_executes_another_program_has_no_memory_any_more(
    daemon: Running, clients: MakeClient
) -> None:
    client = clients()
    client.start(12 * GIB)
    until(lambda: client.running_said, [client])
    client.lost()
    until(lambda: status(daemon.path).programs[0].state == "lost", [])
    with raw(daemon.path) as sock:
        hello = protocol.Hello(protocol.VERSION, 1, client.ticks, 1000, 0, 0, 0, "another")
        sock.sendall(encode(hello) + encode(protocol.Want(0)))
        until(lambda: free(daemon) == 22 * GIB, [])


def test_64_clients_at_once(daemon: Running, clients: MakeClient) -> None:
    daemon.configure(quantum="0.05", budget="20GiB")
    everybody = [clients() for _ in range(64)]
    for each in everybody:
        each.start(2 * GIB)
    until(lambda: all(each.turn for each in everybody), everybody)
    assert sum(each.resident for each in everybody) <= 20 * GIB


# Who may connect, and what may be sent


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


# A daemon of the whole machine, whose users do not trust each other


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


# Places


def test_a_removed_socket_is_made_again(daemon: Running) -> None:
    daemon.path.unlink()

    def answers() -> bool:
        try:
            return status(daemon.path).daemon.pid == os.getpid()
        except NoDaemonError:
            return False

    until(answers, [])


def test_socket_and_folder_are_for_their_owner(daemon: Running) -> None:
    assert daemon.path.stat().st_mode & 0o777 == 0o600
    assert daemon.path.parent.stat().st_mode & 0o077 == 0


def test_a_folder_that_others_may_write_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(paths.PlaceError, match="may be written by others"):
        Running(folder / "daemon.sock").start()


def test_nothing_is_left_behind(folder: Path, clients: MakeClient) -> None:
    before = len(os.listdir("/proc/self/fd"))
    running = Running(folder / "daemon.sock")
    running.start()
    some = [clients() for _ in range(4)]
    for each in some:
        each.start(12 * GIB)
    until(lambda: any(each.running_said for each in some), some)
    running.stop()
    for each in some:
        each.close()
        each.sources.clear()
        each.counters = None
    assert not running.path.exists()
    assert len(os.listdir("/proc/self/fd")) <= before


# Processes that die, hang and come back


@contextmanager
def program(folder: Path, size: float, *more: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "share.client", str(folder / "daemon.sock"), str(size), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def says(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    raise AssertionError(f"ended without saying {word}")


@pytest.mark.parametrize("state", ["running", "waiting", "evicting"])
def test_a_killed_program_holds_nobody_up(
    daemon: Running, folder: Path, clients: MakeClient, state: str
) -> None:
    daemon.configure(quantum="0.05", budget="20GiB")
    other = clients()
    if state == "waiting":
        daemon.configure(quantum="1h")
        other.start(12 * GIB)
        until(lambda: other.running_said, [other])
    with program(folder, 12, "0.5") as victim:
        says(victim, "waiting" if state == "waiting" else "running")
        if state != "waiting":
            other.start(12 * GIB)
        if state == "evicting":
            until(lambda: any(isinstance(e, protocol.Source) for e in other.received), [other])
        victim.kill()
    until(lambda: other.running_said and len(status(daemon.path).programs) == 1, [other])
    assert free(daemon) == 8 * GIB


def test_a_stopped_program_keeps_its_memory_and_goes_on_later(
    daemon: Running, folder: Path, clients: MakeClient
) -> None:
    daemon.configure(quantum="0.05", patience="0.2", budget="20GiB")
    other, small = clients(), clients()
    with program(folder, 12) as victim:
        says(victim, "running")
        victim.send_signal(signal.SIGSTOP)
        other.start(12 * GIB)
        small.start(4 * GIB)
        until(lambda: small.running_said, [other, small])
        until(
            lambda: any("passed over" in text for p in status(daemon.path).programs
                        for text in p.messages),
            [other, small],
        )  # fmt: skip
        victim.send_signal(signal.SIGCONT)
        until(lambda: other.running_said, [other, small])
        victim.kill()


def test_a_daemon_that_is_started_again_waits_for_those_who_hold_memory(
    folder: Path, daemon_process: Callable[[], subprocess.Popen[bytes]]
) -> None:
    first_daemon = daemon_process()
    old = FakeClient(folder / "daemon.sock")
    old.connect()
    old.start(12 * GIB)
    until(lambda: old.running_said, [old])
    first_daemon.kill()
    first_daemon.wait()
    until(lambda: not old.connected, [old])
    daemon_process()
    new = FakeClient(folder / "daemon.sock", ticks=1)
    new.connect()
    new.start(20 * GIB)
    end = time.monotonic() + 0.5
    until(lambda: time.monotonic() > end, [new])
    assert new.resident == 0
    old.connect()
    until(lambda: new.resident == 10 * GIB, [new])
    until(lambda: new.running_said, [old, new])
    assert old.resident == 2 * GIB
    old.close()
    new.close()


@pytest.mark.parametrize("state", ["running", "turns", "evicting"])
def test_programs_go_on_when_the_daemon_is_killed_and_started_again(
    folder: Path,
    clients: MakeClient,
    daemon_process: Callable[[], subprocess.Popen[bytes]],
    state: str,
) -> None:
    first_daemon = daemon_process()
    path = folder / "daemon.sock"
    with Controls(path) as controls:
        controls.ask("configure", name="budget", value="20GiB")
        controls.ask("configure", name="quantum", value="0.1")
    some = [clients(chunk_seconds=0.01), clients(chunk_seconds=0.01)]
    sizes = (8, 12) if state == "running" else (12, 12)
    for each, size in zip(some, sizes, strict=True):
        each.start(size * GIB)
    if state == "running":
        until(lambda: all(each.running_said for each in some), some)
    elif state == "turns":
        until(lambda: all(each.turn >= 2 for each in some), some)
    else:
        until(lambda: any(each.evict is not None for each in some), some)
    first_daemon.kill()
    first_daemon.wait()
    until(lambda: not any(each.connected for each in some), some)
    daemon_process()
    for each in some:
        each.connect()
    assert sum(each.resident + each.unused for each in some) <= 20 * GIB
    turns = [each.turn for each in some]
    if state == "running":
        until(lambda: {p.state for p in status(path).programs} == {"running"}, some)
        assert [each.turn for each in some] == turns
    else:
        until(lambda: all(e.turn > turn for e, turn in zip(some, turns, strict=True)), some)
    (card,) = status(path).cards
    assert card.held <= card.budget == 20 * GIB


def test_fixed_daemon_is_neither_configured_nor_stopped(folder: Path) -> None:
    running = Running(folder / "daemon.sock")
    running.start(fixed=True)
    try:
        with Controls(running.path) as controls:
            for request in ({"command": "stop"}, {"command": "configure", "name": "quantum"}):
                with pytest.raises(DaemonError, match="started with --fixed"):
                    controls.ask(**request)
            assert controls.settings() == ShareSettings()
    finally:
        running.stop()
