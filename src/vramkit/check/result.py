"""What came of a checked run, and the exit status that follows from it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from vramkit.driver import LeftOpen, Report, UnsupportedCall

Verdict = Literal["clean", "reports", "program_failed", "nothing_checked"]

REPORTS = 1
NOTHING_CHECKED = 3
NOT_FOUND = 127


class CheckedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process that opened the simulated GPU, as of its last report or its exit.

    `left_out` counts reports beyond those that are kept. `left_open` is None if the process did not
    end by itself.
    """

    pid: int
    program: str
    settings: dict[str, Any]
    reports: list[Report]
    left_out: int = 0
    unsupported: list[UnsupportedCall] = []
    left_open: list[LeftOpen] | None = None
    calls: int


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """`program_status`: its exit status, or 128 + the signal that ended it."""

    program: list[str]
    program_status: int
    signal: str | None
    profile: str
    simulated: bool = True
    processes: list[CheckedProcess]
    stdout: str | None = None  # where it was captured
    stderr: str | None = None

    @property
    def reports(self) -> list[Report]:
        """All reports, errors first."""
        found = [report for process in self.processes for report in process.reports]
        return sorted(found, key=lambda report: report.severity != "error")

    @property
    def left_out(self) -> int:
        """How many reports were found beyond those in `reports`."""
        return sum(process.left_out for process in self.processes)

    @property
    def unsupported(self) -> list[UnsupportedCall]:
        return [call for process in self.processes for call in process.unsupported]

    @property
    def left_open(self) -> list[LeftOpen]:
        """Memory that was not freed, of the processes that ended by themselves."""
        return [entry for process in self.processes for entry in process.left_open or ()]

    @property
    def errors(self) -> int:
        return sum(report.severity == "error" for report in self.reports)

    @property
    def warnings(self) -> int:
        return len(self.reports) - self.errors

    @property
    def calls(self) -> int:
        return sum(process.calls for process in self.processes)

    def verdict(self, *, warnings_as_errors: bool = False) -> Verdict:
        """The outcome of the run: reports come before the program's own failure."""
        if self.errors or (warnings_as_errors and self.warnings):
            return "reports"
        if self.program_status:
            return "program_failed"
        return "clean" if self.calls else "nothing_checked"

    def status(self, *, warnings_as_errors: bool = False, error_exitcode: int = REPORTS) -> int:
        """The exit status for the run; with an `error_exitcode` of 0 always the program's own."""
        verdict = self.verdict(warnings_as_errors=warnings_as_errors)
        if error_exitcode == 0 or verdict in ("clean", "program_failed"):
            return self.program_status
        return error_exitcode if verdict == "reports" else NOTHING_CHECKED
