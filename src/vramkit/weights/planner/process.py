"""Runs a plan in a process of its own, on a simulated GPU that nobody else sees."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress

import msgspec

from vramkit.weights.layout import BudgetError
from vramkit.weights.planner.request import Answer, Failure, Progress, Request
from vramkit.weights.planner.result import Plan


def run_in_child(request: Request, progress: Callable[[str], object] | None) -> Plan:
    """Never in this process: a simulated libcuda.so.1 here would be found by other libraries.

    Raises what the request deserves, BudgetError or ValueError; RuntimeError if the process fails.
    """
    # -P: a file in the current folder must not stand for a module of ours.
    command = [sys.executable, "-P", "-m", "vramkit.weights.planner.child"]
    settings = {name: value for name, value in os.environ.items() if name != "VRAMKIT_SIM"}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            env=settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as child,
    ):
        assert child.stdin is not None and child.stdout is not None
        try:
            with suppress(BrokenPipeError):  # it has ended already, which is told below
                child.stdin.write(msgspec.json.encode(request))
                child.stdin.close()
            for line in child.stdout:
                answer: Answer = msgspec.json.decode(line, type=Answer)
                if not isinstance(answer, Progress):
                    break
                if progress is not None:
                    progress(answer.what)
            else:
                child.wait()
                errors.seek(0)
                text = errors.read().decode(errors="replace").strip()
                raise RuntimeError(
                    f"the process of the simulated GPU ended with status {child.returncode}: {text}"
                )
        except BaseException:
            child.kill()
            raise
    if isinstance(answer, Failure):
        raise (BudgetError if answer.kind == "BudgetError" else ValueError)(answer.message)
    return answer.plan
