"""Runs one process of a benchmark: with a log, a time limit, and nothing of it left behind."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def run(
    command: list[str], log: Path, environment: dict[str, str], most: float
) -> tuple[int | None, str]:
    """The status, None where it took too long, and what the process said."""
    with log.open("wb") as written:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        status = wait(process, most)
    return status, log.read_text(encoding="utf-8", errors="replace")


def wait(process: subprocess.Popen[bytes], most: float) -> int | None:
    """The status; None where it took too long. Its own children end with it in any case."""
    try:
        return process.wait(most)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # the fault handler then says where it hangs
        with suppress(subprocess.TimeoutExpired):
            process.wait(3)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def how_it_ended(status: int | None, most: float) -> str:
    if status is None:
        return f"did not end within {most:.0f} s"
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
