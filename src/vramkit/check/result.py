"""What came of a checked run, and the exit status that follows from it."""

from __future__ import annotations

from typing import Any

import msgspec

from vramkit.driver import Report

CLEAN = 0
REPORTS = 1
NOTHING_CHECKED = 3
NOT_FOUND = 127


class CheckedProcess(msgspec.Struct, frozen=True):
    """One process that opened the simulated GPU, as it wrote with its last report or at exit."""

    pid: int
    program: str
    settings: dict[str, Any]
    reports: list[Report]
    calls: int


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """`program_status`: its exit status, 128 + the signal where one ended it."""

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
    def errors(self) -> int:
        return sum(report.severity == "error" for report in self.reports)

    @property
    def warnings(self) -> int:
        return len(self.reports) - self.errors

    @property
    def calls(self) -> int:
        return sum(process.calls for process in self.processes)

    def status(self, *, warnings_as_errors: bool) -> int:
        """Reports come before the program's own status, that before having checked nothing."""
        if self.errors or (warnings_as_errors and self.warnings):
            return REPORTS
        if self.program_status:
            return self.program_status
        return CLEAN if self.calls else NOTHING_CHECKED
