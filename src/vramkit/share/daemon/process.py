"""The daemon as a process: one for each socket, in the background, with a log, ended by signals."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import logging.handlers
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from vramkit.share import paths
from vramkit.share.daemon.server import MOST_CONNECTIONS, Server

LOG_BYTES = 1 << 20
READY, ALREADY = b"r", b"a"
# The socket, the credit page and the process, and one on its way to another client.
DESCRIPTORS_EACH = 4


class AlreadyRunningError(RuntimeError):
    """Another daemon holds the lock of this socket."""


def take_lock(path: Path) -> int:
    """A descriptor that holds the lock as long as it is open. Raises AlreadyRunningError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise AlreadyRunningError(f"a daemon holds {path} already") from None
    # For people who look for the process; the lock itself is the descriptor.
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle


def _make_folders(path: Path, system: bool) -> None:
    paths.make_folder(path.parent, system)
    paths.make_folder(paths.private_folder(path, system), system=False)


def _allow_descriptors() -> None:
    """So many that a user with all connections he may have leaves some to others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS * DESCRIPTORS_EACH
    if 0 <= soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def serve(path: Path, *, system: bool, ready: Callable[[], None], fixed: bool = False) -> None:
    """Runs the daemon in this process. Raises AlreadyRunningError, SettingError or OSError."""
    paths.must_be_short(path)
    _make_folders(path, system)
    _allow_descriptors()
    os.umask(0o077)
    lock = take_lock(paths.lock_file(path, system))
    try:
        asyncio.run(_serve(path, system, fixed, ready))
    finally:
        os.close(lock)


async def _serve(path: Path, system: bool, fixed: bool, ready: Callable[[], None]) -> None:
    server = Server(path, system=system, fixed=fixed)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    await server.run(ready)


def serve_in_foreground(path: Path, *, system: bool, fixed: bool = False) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_format())
    _log_to(handler)
    serve(path, system=system, ready=lambda: None, fixed=fixed)


def serve_in_background(path: Path, *, system: bool) -> None:
    """Returns when a daemon serves the socket: this one, in a process of its own, or another.

    Raises RuntimeError with its reason if it could not start. To be called in a process without
    threads: it forks.
    """
    _make_folders(path, system)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    if os.fork() == 0:
        os.close(reading)
        _be_daemon(path, system, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    if said not in (READY, ALREADY):
        log = paths.log_file(path, system)
        reason = said.decode(errors="replace") or "it ended at once"
        raise RuntimeError(f"the daemon did not start: {reason}; see {log}")


def _be_daemon(path: Path, system: bool, writing: int) -> None:
    """The child: never returns."""
    status = 0
    try:
        os.setsid()
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        _log_to(_file_handler(paths.log_file(path, system)))

        def ready() -> None:
            os.write(writing, READY)
            os.close(writing)

        serve(path, system=system, ready=ready)
    except AlreadyRunningError:
        os.write(writing, ALREADY)
    except BaseException as error:
        logging.getLogger(__name__).exception("the daemon has failed")
        status = 1
        try:
            os.write(writing, str(error).encode()[:1000])
        except OSError:
            status = 2
    finally:
        logging.shutdown()
        os._exit(status)


def _format() -> logging.Formatter:
    return logging.Formatter("%(asctime)s %(levelname)s %(message)s")


def _file_handler(path: Path) -> logging.Handler:
    # A full disk costs lines of the log and nothing else.
    logging.raiseExceptions = False
    try:
        handler: logging.Handler = logging.handlers.RotatingFileHandler(
            path, maxBytes=LOG_BYTES, backupCount=2, encoding="utf-8"
        )
    except OSError:
        handler = logging.NullHandler()
    handler.setFormatter(_format())
    return handler


def _log_to(handler: logging.Handler) -> None:
    root = logging.getLogger("vramkit.share")
    root.addHandler(handler)
    root.setLevel(os.environ.get("VRAMKIT_LOG_LEVEL", "INFO"))


def main() -> int:
    """`python -m vramkit.share.daemon.process SOCKET`: what `ensure_daemon` starts."""
    try:
        serve_in_background(Path(sys.argv[1]), system=False)
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
