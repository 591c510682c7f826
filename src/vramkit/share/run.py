"""Runs a program under the gate with its memory shared: what is before it, and what it is told."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from vramkit.launch import Ended, run_program
from vramkit.launch.gate import gate_launch, gate_launch_in, gate_library
from vramkit.share import paths
from vramkit.share.connect import settings_of_daemon
from vramkit.share.long_wait import told_of_long_waits
from vramkit.share.pooling import pooling
from vramkit.share.settings import ShareSettings, read_settings

Mode = Literal["swap", "prefetch", "paged"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOptions:
    """Sizes in bytes, 0: none. `chaos`: no daemon; everything out and in every so many launches.

    Raises ValueError.
    """

    mode: str = "swap"
    memory: int = 0
    weight: float = 1.0
    priority: int = 0
    pool: bool = False
    ipc: bool = False
    log: Path | None = None
    chaos: int = 0

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode is {self.mode!r}; it may be {', '.join(get_args(Mode))}")
        if not 0.001 <= self.weight <= 1000:
            raise ValueError(f"weight is {self.weight:g}; it may be 0.001 to 1000")
        if not -1000 <= self.priority <= 1000:
            raise ValueError(f"priority is {self.priority}; it may be -1000 to 1000")
        if self.chaos < 0:
            raise ValueError(f"chaos is {self.chaos}; it may be 1 or more launches")


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


def variables_here(options: RunOptions) -> dict[str, str]:
    """`variables` for a program on this machine, whose daemon is started where none runs.

    Raises DaemonError, NoDaemonError or SettingError.
    """
    socket = paths.chosen_socket()
    if options.chaos:
        settings = read_settings(paths.settings_file(system=False))
    else:
        settings = settings_of_daemon(socket)
    return variables(options, socket, settings)


def environment_here(
    options: RunOptions, base: Mapping[str, str], links: Path | None = None
) -> dict[str, str]:
    """What the environment of a program needs that somebody else starts, beside `base`.

    `links`: a folder of the user that is there as long as the program; without one it is made
    beside the user's socket. Raises LaunchError, DaemonError, NoDaemonError, SettingError or
    OSError.
    """
    with ExitStack() as stack:
        told = variables_here(options)
        if options.pool:
            told |= stack.enter_context(pooling(base))
        launch = gate_launch_in(links or links_folder(), ["program"], told)
        whole = launch.environment(base)
    return {name: whole[name] for name in (*told, "LD_PRELOAD", "LD_LIBRARY_PATH")}


def links_folder() -> Path:
    """One for each installed gate, as programs outlive who started them. Raises OSError."""
    parent = paths.user_socket().parent
    paths.make_folder(parent, system=False)
    digest = hashlib.sha256(str(gate_library()).encode()).hexdigest()[:8]
    folder = parent / f"gate-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def run_shared(program: Sequence[str], options: RunOptions, *, capture: bool = False) -> Ended:
    """Runs a program to its end, sharing the cards with others.

    Starts the user's daemon where none runs. Raises LaunchError, DaemonError or NoDaemonError.
    """
    from vramkit.launch.program import must_be_executable

    must_be_executable(program)
    with ExitStack() as stack:
        told = variables_here(options)
        if options.pool:
            told |= stack.enter_context(pooling())
        launch = stack.enter_context(gate_launch(program, told))
        if not options.chaos:
            stack.enter_context(told_of_long_waits(Path(told["VRAMKIT_SHARE_SOCKET"])))
        return run_program(launch, capture=capture)
