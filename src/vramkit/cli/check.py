"""`vramkit check -- program ...`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vramkit.cli.errors import UsageError
from vramkit.cli.files import must_be_writable

if TYPE_CHECKING:
    from rich.console import Console

    from vramkit.check import CheckResult


def check(
    *program: Annotated[str, Parameter(allow_leading_hyphen=True)],
    json: bool = False,
    stacks: Literal["python", "native", "off"] = "python",
    profile: str | None = None,
    warnings_as_errors: bool = False,
    output: Path | None = None,
) -> int:
    """Run a program under the checker.

    Parameters
    ----------
    program
        The program and its arguments.
    json
        Findings as one JSON document: to --output, else to stdout (after the program's own output).
    stacks
        What a report tells of each place: Python lines, native frames, or the calling address
        only. Default: python.
    profile
        The simulated card: a name or a path to a .toml. Default: that of VRAMKIT_SIM, else h200.
    warnings_as_errors
        Warnings count as reports for the exit status.
    output
        A file for the findings, instead of stderr.
    """
    from vramkit.check import CheckError, check_program
    from vramkit.check.launch import ProgramNotFoundError
    from vramkit.check.result import NOT_FOUND

    if not program:
        raise UsageError("check needs a program: vramkit check -- python my_program.py")
    if program[0].startswith("-"):
        raise UsageError(f"check has no option {program[0]}; see `vramkit check --help`")
    if output is not None:
        must_be_writable("--output", output)
    try:
        result = check_program(program, stacks=stacks, profile=profile)
    except ProgramNotFoundError as error:
        print(f"vramkit check: {error}", file=sys.stderr)
        return NOT_FOUND
    except CheckError as error:
        raise UsageError(str(error)) from error
    status = result.status(warnings_as_errors=warnings_as_errors)
    if json:
        _write_json(result, status, output)
    else:
        _write_words(result, output)
    return status


def _write_json(result: CheckResult, status: int, output: Path | None) -> None:
    import msgspec

    from vramkit.cli.console import print_json

    document = {
        "simulated": True,
        "profile": result.profile,
        "program": result.program,
        "program_status": result.program_status,
        "signal": result.signal,
        "status": status,
        "errors": result.errors,
        "warnings": result.warnings,
        "calls": result.calls,
        "processes": result.processes,
    }
    if output is None:
        print_json(document)
    else:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")


def _write_words(result: CheckResult, output: Path | None) -> None:
    from rich.console import Console

    from vramkit.cli.console import errors

    if output is None:
        _print_words(errors(), result)
    else:
        with output.open("w", encoding="utf-8") as file:
            _print_words(Console(file=file, highlight=False, width=100), result)


def _print_words(console: Console, result: CheckResult) -> None:
    from rich.text import Text

    from vramkit.check.words import conflict
    from vramkit.report.terminal import print_block

    for report in result.reports:
        print_block(console, conflict(report))
    lines = summary(result)
    if result.reports:
        console.print()
    for line in lines:
        console.print(Text(f"vramkit check: {line}"), soft_wrap=True)


def summary(result: CheckResult) -> list[str]:
    """What came of the run, in one line or two."""
    lines = []
    if result.signal is not None:
        lines.append(f"the program was ended by {result.signal}")
    elif result.program_status:
        lines.append(f"the program ended with status {result.program_status}")
    if not result.calls:
        if result.signal is None:
            lines.append(
                "the program made no driver call: nothing was checked. It must load libcuda.so.1 "
                "by that name, without a path of its own"
            )
        return lines
    count = f"{_plural(result.errors, 'error')}, {_plural(result.warnings, 'warning')}"
    found = count if result.reports else "no report"
    processes = len([process for process in result.processes if process.calls])
    where = f" in {processes} processes" if processes > 1 else ""
    # A process that was killed has told of its calls as of its last report.
    least = "at least " if result.signal is not None else ""
    lines.append(
        f"{found}; {least}{_plural(result.calls, 'driver call')}{where} on a simulated card, "
        f"profile {result.profile}"
    )
    return lines


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
