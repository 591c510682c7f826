"""A daemon that is started, kept and started again for as long as somebody needs it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from vramkit.share import connect, paths
from vramkit.share.connect import Controls, DaemonError, NoDaemonError, ensure_daemon
from vramkit.share.daemon.process import take_lock
from vramkit.share.keeper import Keeper
from vramkit.share.settings import ShareSettings, write_settings

from .client import until


@pytest.fixture
def path(folder: Path) -> Iterator[Path]:
    """Of the socket. A daemon there ends when nobody needs it, and is awaited."""
    write_settings(paths.settings_file(system=False), ShareSettings(idle_exit=0.1))
    path = folder / "daemon.sock"
    yield path
    until(lambda: not path.exists(), [])


@pytest.fixture
def keeper(path: Path) -> Iterator[Keeper]:
    made = Keeper(path)
    yield made
    made.stop()
    with Controls(path) as controls:
        controls.ask("stop")
    until(lambda: not made.connected.is_set(), [])


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The processes that were started for a daemon."""
    found: list[object] = []
    real: Callable[..., Any] = subprocess.run

    def run(*words: Any, **options: Any) -> Any:
        found.append(words)
        return real(*words, **options)

    monkeypatch.setattr(connect.subprocess, "run", run)
    return found


def daemon_of(path: Path) -> int:
    with Controls(path) as controls:
        return controls.status().daemon.pid


def test_threads_that_ask_at_the_same_moment_start_one_process(
    keeper: Keeper, path: Path, starts: list[object]
) -> None:
    """As Ray does when it starts many workers on a node."""
    barrier = threading.Barrier(8)

    def start(_: int) -> int:
        barrier.wait()
        keeper.start()
        return daemon_of(path)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(start, range(8)))) == 1
    assert len(starts) == 1


def test_daemon_that_ends_is_started_again_until_it_is_not_kept(path: Path) -> None:
    keeper = Keeper(path)
    keeper.start()
    assert keeper.connected.wait(60)
    before = daemon_of(path)
    os.kill(before, signal.SIGKILL)

    def another() -> bool:
        try:
            return daemon_of(path) != before
        except NoDaemonError:
            return False

    until(another, [])
    assert keeper.connected.wait(60)
    keeper.stop()
    with Controls(path) as controls:
        controls.ask("stop")
    until(lambda: not keeper.connected.is_set() and not path.exists(), [])


def test_daemon_that_cannot_be_started_is_named_once(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Path] = []

    def refuses(path: Path) -> None:
        tries.append(path)
        raise DaemonError("it does not start")

    monkeypatch.setattr("vramkit.share.keeper.ensure_daemon", refuses)
    monkeypatch.setattr("vramkit.share.keeper.AGAIN_SECONDS", 0.001)
    keeper = Keeper(path)
    with pytest.raises(DaemonError, match="does not start"):
        keeper.start()
    with caplog.at_level(logging.WARNING):
        keeper.watch()
        until(lambda: len(tries) > 5, [])
    keeper.stop()
    assert [record.getMessage() for record in caplog.records] == [
        f"no daemon at {path}: it does not start"
    ]


def test_start_awaits_a_daemon_that_holds_the_lock_and_does_not_answer_yet(
    path: Path, starts: list[object]
) -> None:
    """As while it asks the cards, or while it ends."""
    lock = take_lock(paths.lock_file(path, False))
    thread = threading.Thread(target=ensure_daemon, args=(path,))
    thread.start()
    until(lambda: len(starts) >= 2, [])
    assert thread.is_alive()
    os.close(lock)
    thread.join(60)
    assert not thread.is_alive() and daemon_of(path)


def test_lock_that_nobody_gives_up_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "SECONDS", 0.0)
    lock = take_lock(paths.lock_file(path, False))
    with pytest.raises(DaemonError, match="another process holds its lock"):
        ensure_daemon(path)
    os.close(lock)


def test_daemon_that_takes_too_long_to_start_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "START_SECONDS", 0.001)
    with pytest.raises(DaemonError, match=r"did not start within 0\.001 s"):
        ensure_daemon(path)


def test_path_that_is_too_long_for_a_socket_is_named(folder: Path) -> None:
    path = folder / ("x" * 100) / "daemon.sock"
    length = len(os.fsencode(path))
    for asks in (ensure_daemon, Controls):
        with pytest.raises(paths.PlaceError, match=f"{length} bytes, .* may have 107; set VRAMKIT"):
            asks(path)
    assert not path.parent.exists()
    exact = Path("/" + "x" * 106)
    paths.must_be_short(exact)
    with pytest.raises(NoDaemonError, match="no daemon answers"):
        Controls(exact)
