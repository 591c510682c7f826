"""Runs a program under the gate with its memory shared: what is before it, and what it is told."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from vramkit.launch import Ended, run_program
from vramkit.launch.gate import gate_launch
from vramkit.share import paths
from vramkit.share.connect import Controls, ensure_daemon
from vramkit.share.pooling import pooling
from vramkit.share.settings import ShareSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOptions:
    """Sizes in bytes, 0: none. `chaos`: no daemon; everything out and in every so many launches."""

    mode: str = "swap"
    memory: int = 0
    weight: float = 1.0
    priority: int = 0
    pool: bool = False
    ipc: bool = False
    log: Path | None = None
    chaos: int = 0


def variables(options: RunOptions, socket: Path, settings: ShareSettings) -> dict[str, str]:
    """The environment by which the library under the program is told."""
    result = {
        "VRAMKIT_SHARE": options.mode,
        "VRAMKIT_SHARE_WEIGHT": str(round(options.weight * 1000)),
        "VRAMKIT_SHARE_PRIORITY": str(options.priority),
        "VRAMKIT_SHARE_WINDOW": str(settings.window),
        "VRAMKIT_SHARE_MEMORY": str(options.memory or settings.limit),
        "VRAMKIT_SHARE_HOST_LIMIT": str(settings.host_limit),
    }
    if options.log is not None:
        result["VRAMKIT_SHARE_LOG"] = str(options.log.absolute())
    if options.ipc:
        result["VRAMKIT_SHARE_IPC"] = "1"
    if options.chaos:
        result["VRAMKIT_SHARE_CHAOS"] = str(options.chaos)
    else:
        result["VRAMKIT_SHARE_SOCKET"] = str(socket)
    return result


def run_shared(program: Sequence[str], options: RunOptions, *, capture: bool = False) -> Ended:
    """Runs a program to its end, sharing the cards with others.

    Starts the user's daemon where none runs. Raises LaunchError, DaemonError or NoDaemonError.
    """
    from vramkit.launch.program import must_be_executable
    from vramkit.share.settings import read_settings

    must_be_executable(program)
    socket = paths.chosen_socket()
    if options.chaos:
        settings = read_settings(paths.settings_file(system=False))
    else:
        import msgspec

        ensure_daemon(socket)
        with Controls(socket) as controls:
            settings = msgspec.convert(controls.ask("settings"), ShareSettings)
    with ExitStack() as stack:
        told = variables(options, socket, settings)
        if options.pool:
            told |= stack.enter_context(pooling())
        launch = stack.enter_context(gate_launch(program, told))
        return run_program(launch, capture=capture)
