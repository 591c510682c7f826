"""Runs a program on the simulated GPU and tells which of its accesses to memory nothing orders."""

from vramkit.check.launch import CheckError, check_program
from vramkit.check.result import CheckedProcess, CheckResult

__all__ = ["CheckError", "CheckResult", "CheckedProcess", "check_program"]
