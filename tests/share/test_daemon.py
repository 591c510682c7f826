"""The daemon over real sockets and credit pages, with clients played in Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vramkit.share import paths, protocol
from vramkit.share.connect import Controls, DaemonError, NoDaemonError
from vramkit.share.protocol import encode
from vramkit.share.settings import ShareSettings

from .client import CARD, GIB, FakeClient, until
from .conftest import Running
from .daemon_sockets import MakeClient, free, raw, status


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
