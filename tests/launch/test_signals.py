"""Signals during a run: passed on once, whoever sent them; the caller's handlers come back."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from vramkit.launch import Ended, Launch, run_program
from vramkit.launch.signals import FORWARDED

PYTHON = [sys.executable, "-I", "-S", "-c"]


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Whatever the tests were started with: a background job has SIGINT ignored."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in FORWARDED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signalling(number: signal.Signals) -> Launch:
    """A program that sends its parent, that is us, a signal, and waits for one of its own."""
    wait = "signal.alarm(30); signal.pause()"  # no test waits for ever
    source = f"import os, signal; os.kill(os.getppid(), {int(number)}); {wait}"
    return Launch([*PYTHON, source])


@pytest.mark.parametrize("number", FORWARDED)
def test_a_signal_to_us_alone_reaches_the_program(number: signal.Signals) -> None:
    ended = run_program(signalling(number), capture=True)  # SIGINT ends in a traceback
    assert (ended.status, ended.signal) == (128 + number, number.name)


def test_the_callers_handlers_and_mask_come_back() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    run_program(signalling(signal.SIGINT), capture=True)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    assert seen == []
    signal.raise_signal(signal.SIGINT)
    assert seen == [signal.SIGINT]


def test_an_ignored_signal_stays_ignored_in_the_program_too() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    source = (
        "import os, signal\n"
        "os.kill(os.getppid(), signal.SIGHUP)\n"
        "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)\n"
    )
    assert run_program(Launch([*PYTHON, source]), capture=True) == Ended(0, None, "True\n", "")
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_signal_that_another_thread_takes_is_passed_on() -> None:
    """Signals are blocked in the thread that waits, not in those that the caller already has."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        ended = run_program(signalling(signal.SIGTERM))
    finally:
        done.set()
        thread.join()
    assert (ended.status, ended.signal) == (143, "SIGTERM")


def test_other_children_of_the_caller_are_still_told_of() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGCHLD, lambda number, frame: seen.append(number))
    try:
        run_program(Launch([*PYTHON, ""]))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert seen


# os.write, since a handler may run inside another write to the same stream.
COUNTING = """
import os, signal
signal.alarm(30)
seen = []
signal.signal(signal.SIGINT, lambda *_: (seen.append(1), os.write(1, b"interrupted\\n")))
signal.signal(signal.SIGTERM, lambda *_: os._exit(len(seen)))
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""
RUNNER = """
import sys
from vramkit.launch import Launch, run_program
sys.exit(run_program(Launch(sys.argv[1:])).status)
"""


@contextmanager
def in_a_terminal() -> Iterator[tuple[subprocess.Popen[str], IO[bytes]]]:
    """The counting program under a process of one thread, both in the foreground of a terminal."""
    ours, terminal = pty.openpty()
    with open(ours, "r+b", buffering=0) as keyboard:
        runner = subprocess.Popen(
            [sys.executable, "-c", RUNNER, *PYTHON, COUNTING],
            stdin=terminal,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        with runner:
            assert line(runner) == "ready"
            yield runner, keyboard


def line(runner: subprocess.Popen[str]) -> str:
    assert runner.stdout is not None
    return runner.stdout.readline().rstrip()


def test_ctrl_c_of_a_terminal_arrives_once() -> None:
    """The terminal sends it to the whole group; ours is looked at when the program has had its."""
    with in_a_terminal() as (runner, keyboard):
        runner.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, runner.pid, os.WSTOPPED)
        keyboard.write(b"\x03")
        assert line(runner) == "interrupted"
        runner.terminate()  # comes behind SIGINT, which has the lower number
        runner.send_signal(signal.SIGCONT)
    assert runner.returncode == 1


def test_in_a_terminal_too_a_signal_to_us_alone_is_passed_on() -> None:
    with in_a_terminal() as (runner, _):
        runner.send_signal(signal.SIGINT)
        assert line(runner) == "interrupted"
        runner.terminate()
    assert runner.returncode == 1
