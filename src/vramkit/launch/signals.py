"""Waits for a program, and passes on to it the signals that reach this process alone.

A terminal sends Ctrl-C to the whole process group: the program has it already, and a second one
would interrupt its clean-up. `kill PID` reaches this process only. The origin that comes with a
signal tells them apart; Python's handlers are not given it, hence sigtimedwait.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from types import FrameType

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LOOK_AGAIN_SECONDS = 0.1

logger = logging.getLogger(__name__)


def run_to_end(start: Callable[[], subprocess.Popen[bytes]]) -> int:
    """Starts a child, waits for it and returns its code, negative for a signal.

    Python has signals handled in the main thread only: from another one nothing is passed on.
    """
    if threading.current_thread() is not threading.main_thread():
        return start().wait()
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    # An ignored signal (nohup, a background job) stays ignored, here and in the child. None: a
    # handler that is not Python's, and could not be put back.
    watched = [
        number for number in FORWARDED if signal.getsignal(number) not in (signal.SIG_IGN, None)
    ]
    before = {number: signal.signal(number, note) for number in watched}
    try:
        # Signals are blocked after the start, as the child would inherit that.
        child = start()
        _wait(child, watched, caught)
        return child.returncode
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(child: subprocess.Popen[bytes], watched: list[signal.Signals], caught: list[int]) -> None:
    awaited = {*watched, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        while child.poll() is None:
            # Another thread of the caller may take a signal, the child's end included: then the
            # handler has run when this returns, and the loop looks again.
            info = signal.sigtimedwait(awaited, LOOK_AGAIN_SECONDS)
            if info is not None and info.si_signo != signal.SIGCHLD and info.si_code <= 0:
                _pass_on(child, info.si_signo)
            while caught:
                number = caught.pop(0)
                if not _in_foreground():
                    _pass_on(child, number)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if callable(signal.getsignal(signal.SIGCHLD)):
            signal.raise_signal(signal.SIGCHLD)  # other children's ends were taken here too


def _pass_on(child: subprocess.Popen[bytes], number: int) -> None:
    logger.info("passing %s on to process %d", signal.Signals(number).name, child.pid)
    child.send_signal(number)


def _in_foreground() -> bool:
    """Whether a terminal would have sent a signal to our whole process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
