"""`vramkit daemon start|stop|status|logs|metrics`"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Literal

from vramkit.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

PROBLEM = 1
STOP_SECONDS = 10.0


def daemon(
    action: Literal["start", "stop", "status", "logs", "metrics"],
    /,
    *,
    foreground: bool = False,
    system: bool = False,
    fixed: bool = False,
    lines: int = 50,
    json: bool = False,
) -> int:
    """Control the daemon.

    Parameters
    ----------
    action
        start, stop, status, logs (the last lines) or metrics (for Prometheus).
    foreground
        With start: stay in the foreground and log to stderr, as a service manager wants it.
    system
        With start: serve all users of this machine, at /run/vramkit; needs root.
    fixed
        With start --foreground: nobody may configure or stop it over its socket; for containers,
        whose root would be taken for root.
    lines
        With logs: so many. Default: 50.
    json
        With start, stop and status: one JSON document.
    """
    from vramkit.share import paths

    socket = paths.system_socket() if system else paths.chosen_socket()
    if action == "start":
        if fixed and not foreground:
            raise UsageError("--fixed goes with --foreground: signals are what ends such a daemon")
        return _start(socket, foreground=foreground, system=system, fixed=fixed, json=json)
    if fixed:
        raise UsageError("--fixed goes with `vramkit daemon start --foreground`")
    if foreground or system:
        raise UsageError("--foreground and --system go with `vramkit daemon start`")
    if action == "stop":
        return _stop(socket, json=json)
    if action == "status":
        return _status(socket, json=json)
    if action == "logs":
        return _logs(paths.log_file(socket, socket == paths.system_socket()), lines)
    from vramkit.cli.sharing import controls

    with controls() as connection:
        sys.stdout.write(connection.ask("metrics"))
    return 0


def _start(socket: Path, *, foreground: bool, system: bool, fixed: bool, json: bool) -> int:
    from vramkit.share.connect import DaemonError, NoDaemonError, await_daemon, ensure_daemon
    from vramkit.share.daemon.process import (
        AlreadyRunningError,
        serve_in_background,
        serve_in_foreground,
    )
    from vramkit.share.settings import SettingError

    try:
        if foreground:
            serve_in_foreground(socket, system=system, fixed=fixed)
            return 0
        if system:
            serve_in_background(socket, system=True)
            await_daemon(socket)
        else:
            ensure_daemon(socket)
    except SettingError as error:
        raise UsageError(str(error)) from error
    except (AlreadyRunningError, DaemonError, NoDaemonError, RuntimeError) as error:
        raise CommandError(str(error), PROBLEM) from error
    return _status(socket, json=json)


def _stop(socket: Path, *, json: bool) -> int:
    from vramkit.cli.console import print_json
    from vramkit.cli.sharing import controls
    from vramkit.share.connect import NoDaemonError, connect

    with controls() as connection:
        pid = connection.ask("stop")
    end = time.monotonic() + STOP_SECONDS
    while True:
        try:
            connect(socket).close()
        except NoDaemonError:
            break
        if time.monotonic() > end:
            raise CommandError(f"the daemon (process {pid}) did not end", PROBLEM)
        time.sleep(0.02)
    if json:
        print_json({"stopped": pid})
    else:
        print(f"stopped process {pid}; programs go on, and connect to the next daemon")
    return 0


def _status(socket: Path, *, json: bool) -> int:
    from vramkit.cli.console import print_json
    from vramkit.cli.sharing import controls

    with controls() as connection:
        status = connection.status()
    if json:
        print_json(status.daemon)
        return 0
    daemon = status.daemon
    switch = "none yet" if daemon.switch_seconds is None else f"{daemon.switch_seconds:.2f} s"
    print(f"process {daemon.pid} at {daemon.socket}, up {daemon.uptime_seconds:.0f} s")
    print(f"{len(status.programs)} programs; quantum {daemon.quantum_seconds:g} s, switch {switch}")
    return 0


def _logs(path: Path, lines: int) -> int:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            last = deque(file, maxlen=max(0, lines))
    except FileNotFoundError:
        raise CommandError(f"there is no log at {path}", PROBLEM) from None
    sys.stdout.writelines(last)
    return 0
