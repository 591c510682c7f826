"""`vramkit run -- program ...`"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vramkit.cli.errors import CommandError, UsageError
from vramkit.cli.files import must_be_writable

NOT_FOUND = 127
NO_DAEMON = 1


def run(
    *program: Annotated[str, Parameter(allow_leading_hyphen=True)],
    memory: str | None = None,
    weight: float = 1.0,
    priority: int = 0,
    mode: Literal["swap", "prefetch", "paged"] = "swap",
    pool: bool = False,
    ipc: bool = False,
    log: Path | None = None,
    chaos: int = 0,
    json: bool = False,
) -> int:
    """Run a program that shares the card.

    Parameters
    ----------
    program
        The program and its arguments.
    memory
        The most memory of each card for it: 12GiB, 800MB. Default: that of `vramkit config limit`.
    weight
        Its share of the time beside programs of weight 1. Default: 1.
    priority
        Programs of a higher priority have their turns first. Default: 0.
    mode
        How memory moves: swap, prefetch or paged. Default: swap.
    pool
        Give PyTorch, CuPy and RMM of a Python program vramkit's pool.
    ipc
        Keep its memory exportable to other processes; it cannot be swapped then.
    log
        A file for what the library under the program has to say.
    chaos
        A self-test without other programs: everything out and in again every so many launches.
    json
        How the program ended as one JSON document, on stdout after the program's output.
    """
    from vramkit.launch import LaunchError, ProgramNotFoundError
    from vramkit.share.connect import DaemonError, NoDaemonError
    from vramkit.share.run import RunOptions, run_shared
    from vramkit.share.settings import SettingError
    from vramkit.weights.budget import parse_bytes

    if not program:
        raise UsageError("run needs a program: vramkit run -- python my_program.py")
    if program[0].startswith("-"):
        raise UsageError(f"run has no option {program[0]}; see `vramkit run --help`")
    if log is not None:
        must_be_writable("--log", log)
    try:
        nbytes = parse_bytes(memory, "memory") if memory is not None else 0
        options = RunOptions(mode, nbytes, weight, priority, pool, ipc, log, chaos)
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    try:
        ended = run_shared(program, options)
    except ProgramNotFoundError as error:
        instead = shlex.join(error.instead)
        hint = f"; try: vramkit run -- {instead}" if instead else ""
        raise CommandError(f"{error}{hint}", NOT_FOUND) from error
    except (LaunchError, SettingError) as error:
        raise UsageError(str(error)) from error
    except (DaemonError, NoDaemonError) as error:
        raise CommandError(str(error), NO_DAEMON) from error
    if json:
        from vramkit.cli.console import print_json

        print_json({"program": list(program), "status": ended.status, "signal": ended.signal})
    return ended.status
