"""`vramkit record -- program ...`"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vramkit.cli.errors import CommandError, UsageError
from vramkit.cli.files import must_be_writable

if TYPE_CHECKING:
    from vramkit.record import RecordResult

NOT_FOUND = 127


def record(
    *program: Annotated[str, Parameter(allow_leading_hyphen=True)],
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("vramkit-trace.csv.gz"),
    json: bool = False,
) -> int:
    """Run a program and record its allocations.

    Parameters
    ----------
    program
        The program and its arguments.
    output
        The trace; compressed if it ends with .gz. Default: vramkit-trace.csv.gz.
    json
        A summary as one JSON document, on stdout after the program's output.
    """
    from vramkit.launch import LaunchError, ProgramNotFoundError
    from vramkit.record import record_program

    if not program:
        raise UsageError("record needs a program: vramkit record -- python my_program.py")
    if program[0].startswith("-"):
        raise UsageError(f"record has no option {program[0]}; see `vramkit record --help`")
    must_be_writable("--output", output)
    try:
        result = record_program(program, output)
    except ProgramNotFoundError as error:
        instead = shlex.join(error.instead)
        hint = f"; try: vramkit record -- {instead}" if instead else ""
        raise CommandError(f"{error}{hint}", NOT_FOUND) from error
    except LaunchError as error:
        raise UsageError(str(error)) from error
    if json:
        from vramkit.cli.console import print_json

        print_json(_document(result))
    else:
        for line in _summary(result, output):
            print(f"vramkit record: {line}", file=sys.stderr)
    return result.status


def _document(result: RecordResult) -> dict[str, object]:
    return {
        "program": result.program,
        "status": result.status,
        "signal": result.signal,
        "trace": str(result.trace),
        "processes": result.processes,
    }


def _summary(result: RecordResult, output: Path) -> list[str]:
    from vramkit.report.units import bytes_text, count_text

    if not result.processes:
        return [
            "nothing was recorded: the program used no CUDA driver, or one that it opened by its "
            f"full path; {output} has no events"
        ]
    lines = []
    for process in result.processes:
        left = bytes_text(process.bytes_at_end)
        failed = f", {process.failed:,} refused" if process.failed else ""
        lines.append(
            f"process {process.process}: {count_text(process.allocations, 'allocation')}{failed}, "
            f"at most {bytes_text(process.peak_bytes)} at a time, {left} at the end; "
            f"{count_text(process.launches, 'launch', 'launches')}"
        )
        if not process.complete:
            lines.append(f"process {process.process}: the disk was full, and its trace ends early")
    return [*lines, f"written to {output}"]
