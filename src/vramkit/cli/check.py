"""`vramkit check -- program ...`"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vramkit.cli.errors import CommandError, UsageError
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
    error_exitcode: int = 1,
    output: Path | None = None,
) -> int:
    """Run a program under the checker.

    Parameters
    ----------
    program
        The program and its arguments.
    json
        Findings as one JSON document: to --output, else to stdout after the program's output.
    stacks
        Each place as Python lines, native frames, or the calling address only. Default: python.
    profile
        The simulated card: a name or a path to a .toml. Default: that of VRAMKIT_SIM, else h200.
    warnings_as_errors
        Warnings count as reports for the exit status.
    error_exitcode
        The exit status for reports; 0: always the program's own status. Default: 1.
    output
        A file for the findings, instead of stderr.
    """
    from vramkit.check import CheckError, check_program
    from vramkit.check.result import NOT_FOUND
    from vramkit.launch import ProgramNotFoundError

    if not program:
        raise UsageError("check needs a program: vramkit check -- python my_program.py")
    if program[0].startswith("-"):
        raise UsageError(f"check has no option {program[0]}; see `vramkit check --help`")
    if not 0 <= error_exitcode <= 255:
        raise UsageError(f"--error-exitcode is {error_exitcode}; it may be 0 to 255")
    if output is not None:
        must_be_writable("--output", output)
    try:
        result = check_program(program, stacks=stacks, profile=profile)
    except ProgramNotFoundError as error:
        instead = shlex.join(error.instead)
        hint = f"; try: vramkit check -- {instead}" if instead else ""
        raise CommandError(f"{error}{hint}", NOT_FOUND) from error
    except CheckError as error:
        raise UsageError(str(error)) from error
    status = result.status(warnings_as_errors=warnings_as_errors, error_exitcode=error_exitcode)
    if json:
        verdict = result.verdict(warnings_as_errors=warnings_as_errors)
        _write_json(_document(result, status, verdict), output)
    else:
        _write_words(result, status, output)
    return status


def _document(result: CheckResult, status: int, verdict: str) -> dict[str, object]:
    return {
        "simulated": True,
        "profile": result.profile,
        "program": result.program,
        "verdict": verdict,
        "status": status,
        "program_status": result.program_status,
        "signal": result.signal,
        "errors": result.errors,
        "warnings": result.warnings,
        "left_out": result.left_out,
        "calls": result.calls,
        "processes": result.processes,
    }


def _write_json(document: dict[str, object], output: Path | None) -> None:
    from vramkit.cli.console import json_bytes, print_json

    if output is None:
        print_json(document)
    else:
        output.write_bytes(json_bytes(document))


def _write_words(result: CheckResult, status: int, output: Path | None) -> None:
    from vramkit.cli.console import errors, text_file

    if output is None:
        _print_words(errors(), result, status)
    else:
        with text_file(output) as console:
            _print_words(console, result, status)


def _print_words(console: Console, result: CheckResult, status: int) -> None:
    from rich.text import Text

    from vramkit.check.words import blocks, summary
    from vramkit.report.terminal import print_block

    found = blocks(result)
    for block in found:
        print_block(console, block)
    if found:
        console.print()
    for line in summary(result, status):
        console.print(Text(f"vramkit check: {line}"), soft_wrap=True)
