"""What `vramkit run` says of a program that waits long, by a clock of the test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from vramkit.share import connect, long_wait
from vramkit.share.long_wait import LONG_SECONDS, LongWait, MuteDaemonError, descendants_of
from vramkit.share.status import DaemonStatus, ProgramStatus, Status

PATH = Path("/run/vramkit/daemon.sock")
DAEMON = DaemonStatus(1, str(PATH), "0", False, 0.0, 30.0, None, 0)
PROGRAM = ProgramStatus(
    client=1, pid=42, uid=0, name="train", state="waiting", mode="swap", weight=1.0, priority=0,
    memory_limit=0, turns=3, passed_over=0, waited_seconds=0.0, blocked=False, messages=[],
    cards=[],
)  # fmt: skip


class Daemon:
    def __init__(self) -> None:
        self.program = PROGRAM
        self.answer: Callable[[], Status | None] = lambda: Status(DAEMON, [], [self.program])
        self.wait = LongWait(PATH, lambda path: self.answer(), lambda: {42})

    def change(self, **fields: object) -> None:
        self.program = msgspec.structs.replace(self.program, **fields)


def mute() -> Status | None:
    raise MuteDaemonError("no answer")


def test_a_long_wait_is_said_once() -> None:
    daemon = Daemon()
    assert daemon.wait.look(100.0) is None
    assert daemon.wait.look(99.9 + LONG_SECONDS) is None
    text = daemon.wait.look(100.0 + LONG_SECONDS)
    assert text is not None
    assert "process 42 (train) has waited 60 s for its turn" in text and str(PATH) in text
    assert daemon.wait.look(1000.0 + LONG_SECONDS) is None


def test_what_is_waited_for_is_said() -> None:
    daemon = Daemon()
    daemon.change(blocked=True)
    daemon.wait.look(0.0)
    assert "for memory that does not become free" in str(daemon.wait.look(LONG_SECONDS))


@pytest.mark.parametrize("change", [{"turns": 4}, {"state": "running"}, {"pid": 43}])
def test_a_turn_between_begins_another_wait(change: dict[str, object]) -> None:
    daemon = Daemon()
    daemon.wait.look(0.0)
    daemon.change(**change)
    assert daemon.wait.look(30.0) is None
    if "turns" not in change:
        daemon.program = PROGRAM
    assert daemon.wait.look(LONG_SECONDS) is None


def test_a_daemon_that_says_nothing_is_named() -> None:
    daemon = Daemon()
    daemon.answer = mute
    assert daemon.wait.look(0.0) is None
    assert "has not answered for 60 s" in str(daemon.wait.look(LONG_SECONDS))


def test_a_daemon_that_answers_between_is_not_mute() -> None:
    daemon = Daemon()
    daemon.answer = mute
    daemon.wait.look(0.0)
    daemon.answer = lambda: Status(DAEMON, [], [])
    daemon.wait.look(30.0)
    daemon.answer = mute
    assert daemon.wait.look(LONG_SECONDS) is None


def test_without_a_daemon_nothing_is_said() -> None:
    daemon = Daemon()
    daemon.answer = lambda: None
    assert daemon.wait.look(0.0) is None and daemon.wait.look(10 * LONG_SECONDS) is None


def test_a_daemon_that_hangs_is_told_from_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "SECONDS", 0.05)
    path = tmp_path / "daemon.sock"
    assert long_wait.ask(path) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(MuteDaemonError, match="does not answer"):
            long_wait.ask(path)
    assert long_wait.ask(path) is None


def test_descendants_are_found_over_generations() -> None:
    inner = "print(1, flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{inner}'])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        grandchildren = descendants_of(child.pid)
        assert len(grandchildren) == 1
        assert grandchildren | {child.pid} <= descendants_of(os.getpid())
        child.stdin.write(b"\n")
        child.stdin.flush()


def test_the_line_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(long_wait, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(LongWait, "look", lambda self, now: setattr(self, "said", True) or "waits")
    said = ""
    end = time.monotonic() + 20
    with long_wait.told_of_long_waits(PATH):
        while not said.endswith("\n") and time.monotonic() < end:
            said += capsys.readouterr().err
    assert said == "vramkit: waits.\n"
