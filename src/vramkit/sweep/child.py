"""A worker process, as its parent sees it: lines of answers, its last words, and its end."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Generic, Literal, TypeVar

import msgspec

Answer = TypeVar("Answer")

KEPT_BYTES = 1 << 16
"""Of what a process wrote to stderr; a million lines must not fill memory or disk."""
LAST_WORDS = 300
"""Characters of the last line of them that are told."""
LOOK_SECONDS = 0.1
"""Between two looks whether the process is still there: a child of its own may hold the pipe."""
GRACE_SECONDS = 3.0
"""For the cleaning up of a process that is asked to end."""


class Child(Generic[Answer]):
    """A worker in a session of its own: Ctrl-C reaches it only through end().

    `given` is all that it reads; without it the worker reads what give() has for it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        answers: msgspec.json.Decoder[Answer],
        *,
        given: bytes | None = None,
    ) -> None:
        self._decoder = answers
        if given is None:
            self._process = self._started(arguments, subprocess.PIPE)
        else:
            with tempfile.TemporaryFile() as file:
                file.write(given)
                file.seek(0)
                self._process = self._started(arguments, file)
        assert self._process.stdout is not None and self._process.stderr is not None
        self._answers, self._errors = self._process.stdout, self._process.stderr
        self._selector = selectors.DefaultSelector()
        for pipe in (self._answers, self._errors):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)
        self._open = True
        self._read = b""
        self._words = b""

    @staticmethod
    def _started(arguments: Sequence[str], stdin: int | IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, line: bytes) -> None:
        """To a worker that waits for it. One that has ended is noticed by look()."""
        assert self._process.stdin is not None
        left = memoryview(line + b"\n")
        with suppress(BrokenPipeError):
            while left:
                left = left[self._process.stdin.write(left) or 0 :]

    def pipes(self) -> list[int]:
        """Those on which something may come, for a wait for one of several workers."""
        return [key.fd for key in self._selector.get_map().values()]

    def look(self, seconds: float = LOOK_SECONDS) -> Answer | Literal["nothing yet", "the end"]:
        """The next answer; waits for it for so long. Raises msgspec.DecodeError."""
        gone = self._gone()
        if b"\n" not in self._read:
            for key, _ in self._selector.select(0 if gone else seconds):
                if key.fileobj is self._errors:
                    self._take_words()
                else:
                    self._take_answers()
        if b"\n" in self._read:
            line, _, self._read = self._read.partition(b"\n")
            return self._decoder.decode(line)
        return "the end" if gone or not self._open else "nothing yet"

    def end(self, *, asked: bool, hurry: Callable[[], bool] = lambda: False) -> None:
        """Waits a moment for the end of the process, then kills it, and always its children.

        It is asked to end (SIGTERM) where it would not do so by itself. `hurry` ends the wait.
        """
        if self._process.returncode is not None:
            return
        if asked and not self._gone():
            os.kill(self._process.pid, signal.SIGTERM)
        limit = time.monotonic() + GRACE_SECONDS
        while not self._gone() and time.monotonic() < limit and not hurry():
            with suppress(msgspec.DecodeError):
                self.look(0.02)  # a process that writes must not wait for a reader
        # Not reaped yet, so that the number of its group is still its own.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._take_words()
        self._selector.close()
        for pipe in (self._process.stdin, self._answers, self._errors):
            if pipe is not None:
                pipe.close()

    def last_words(self) -> str:
        """How it ended, and the last line that it wrote; after end()."""
        status = self._process.returncode
        how = f"ended by {_name(-status)}" if status < 0 else f"exit status {status}"
        lines = self._words.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {last[-LAST_WORDS:]}" if last else how

    def _gone(self) -> bool:
        """Whether it has ended; it stays a zombie until end()."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is not None

    def _take_answers(self) -> None:
        read = self._answers.read(KEPT_BYTES)
        if read == b"":
            self._open = False
            self._selector.unregister(self._answers)
        self._read += read or b""

    def _take_words(self) -> None:
        read = self._errors.read(KEPT_BYTES)
        if read == b"" and self._errors in self._selector.get_map():
            self._selector.unregister(self._errors)
        self._words = (self._words + (read or b""))[-KEPT_BYTES:]


def _name(number: int) -> str:
    """Of a signal; those for real time have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
