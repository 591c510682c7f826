"""Runs a program on the simulated GPU and reports accesses to memory that are not ordered."""

from vramkit.check.result import CheckedProcess, CheckResult, Verdict
from vramkit.check.run import check_program
from vramkit.check.settings import CheckError

__all__ = ["CheckError", "CheckResult", "CheckedProcess", "Verdict", "check_program"]
