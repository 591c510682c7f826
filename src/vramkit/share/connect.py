"""How commands reach the daemon: they start it where none runs, ask it, and read its answers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from vramkit.share import paths, protocol
from vramkit.share.settings import ShareSettings, read_settings
from vramkit.share.status import Status

SECONDS = 10.0
START_SECONDS = 60.0
AGAIN_SECONDS = 0.02
LARGEST_ANSWER = 64 << 20


class NoDaemonError(OSError):
    """Nobody answers at the socket."""


class DaemonError(RuntimeError):
    """The daemon refused a request, or could not be started; the text is its own."""


def connect(path: Path) -> socket.socket:
    """A connection whose other end is checked: the same user, or root.

    Raises NoDaemonError, or PlaceError where no daemon can be.
    """
    paths.must_be_short(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.settimeout(SECONDS)
    try:
        sock.connect(str(path))
    except OSError as error:
        sock.close()
        raise NoDaemonError(f"no daemon answers at {path} ({error.strerror})") from error
    from vramkit.share.daemon.connection import peer_of

    uid = peer_of(sock).uid
    if uid not in (0, os.getuid()):
        sock.close()
        raise NoDaemonError(f"the daemon at {path} belongs to user {uid}, and is not trusted")
    return sock


def ensure_daemon(path: Path) -> None:
    """A daemon answers when this returns; the user's is started where none does.

    Raises DaemonError, NoDaemonError or PlaceError.
    """
    end = time.monotonic() + SECONDS
    while True:
        try:
            connect(path).close()
            return
        except NoDaemonError as error:
            if path == paths.system_socket():
                raise
            if time.monotonic() > end:
                raise DaemonError(f"{error}, and another process holds its lock") from error
        _start_daemon(path)
        # Where another process starts one, or ends one, it holds the lock and does not answer.
        time.sleep(AGAIN_SECONDS)


def await_daemon(path: Path) -> None:
    """Where another process starts one at the same time, it holds the lock and does not answer yet.

    Raises DaemonError or PlaceError.
    """
    end = time.monotonic() + SECONDS
    while True:
        try:
            connect(path).close()
            return
        except NoDaemonError as error:
            if time.monotonic() > end:
                raise DaemonError(f"{error}, and another process holds its lock") from error
        time.sleep(AGAIN_SECONDS)


def _start_daemon(path: Path) -> None:
    """Returns when one serves the socket, or another process holds its lock. Raises DaemonError."""
    # It must not be a program under itself.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LD_", "CUDA_"))
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "vramkit.share.daemon.process", str(path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DaemonError(f"the daemon did not start within {START_SECONDS:g} s") from None
    if done.returncode != 0:
        raise DaemonError(" ".join(done.stderr.split()[-60:]) or "the daemon did not start")


class Controls:
    """A control connection. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self._socket = connect(path)
        try:
            self._socket.sendall(protocol.encode(protocol.Control()))
        except OSError as error:
            self._socket.close()
            raise NoDaemonError(f"the daemon at {path} does not answer ({error})") from error
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Controls:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, command: str, **words: str) -> Any:
        """The answer's value. Raises DaemonError or NoDaemonError."""
        request = msgspec.json.encode({"command": command, **words})
        if len(request) > protocol.LARGEST_LINE:
            raise DaemonError(f"a request of {len(request)} bytes is too long")
        try:
            self._socket.sendall(request + b"\n")
            line = self._file.readline(LARGEST_ANSWER)
        except OSError as error:
            raise NoDaemonError(f"the daemon does not answer ({error})") from error
        if not line.endswith(b"\n"):
            raise NoDaemonError("the daemon has ended")
        answer = msgspec.json.decode(line)
        if "error" in answer:
            raise DaemonError(answer["error"])
        return next(iter(answer.values()))

    def status(self) -> Status:
        return msgspec.convert(self.ask("status"), Status)

    def wait_for_end(self) -> None:
        """Returns when the daemon has ended. It stays as long as somebody waits here."""
        self._socket.settimeout(None)
        with suppress(OSError):
            self._socket.recv(1)

    def settings(self) -> ShareSettings:
        return msgspec.convert(self.ask("settings"), ShareSettings)


def settings_of_daemon(path: Path) -> ShareSettings:
    """Those of the daemon at this socket, which is started where none runs.

    Raises DaemonError, NoDaemonError or PlaceError.
    """
    ensure_daemon(path)
    try:
        with Controls(path) as controls:
            return controls.settings()
    except NoDaemonError:
        # That one had been idle for long, and has ended meanwhile.
        ensure_daemon(path)
        with Controls(path) as controls:
            return controls.settings()


def settings_in_use(path: Path) -> ShareSettings:
    """Those of the daemon at this socket, else those that the next one will read.

    Raises SettingError.
    """
    try:
        with Controls(path) as controls:
            return controls.settings()
    except NoDaemonError:
        return read_settings(paths.settings_file(system=False))
