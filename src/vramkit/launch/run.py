"""Starts a program and waits for its end."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import tempfile
from contextlib import ExitStack
from typing import IO

from vramkit.launch.ended import Ended
from vramkit.launch.launch import Launch
from vramkit.launch.program import must_be_executable, not_executable
from vramkit.launch.signals import run_to_end

logger = logging.getLogger(__name__)


def run_program(launch: Launch, *, capture: bool = False) -> Ended:
    """Runs a program to its end.

    Its standard streams are the caller's, or are captured. SIGINT, SIGTERM, SIGHUP and SIGQUIT that
    reach this process are passed on; how the program then ended is returned. Raises
    ProgramNotFoundError.
    """
    must_be_executable(launch.program)
    environment = launch.environment(os.environ)
    with ExitStack() as stack:
        # Files, not pipes: nothing has to be read while the program runs.
        streams: list[IO[bytes] | None] = [None, None]
        if capture:
            streams = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]

        def start() -> subprocess.Popen[bytes]:
            logger.info("starting %s", shlex.join(launch.program))
            try:
                return subprocess.Popen(
                    launch.program, env=environment, stdout=streams[0], stderr=streams[1]
                )
            except OSError as error:
                raise not_executable(launch.program, error.strerror or str(error)) from error

        return Ended.from_returncode(run_to_end(start), *map(_text, streams))


def _text(stream: IO[bytes] | None) -> str | None:
    if stream is None:
        return None
    stream.seek(0)
    return stream.read().decode(errors="replace")
