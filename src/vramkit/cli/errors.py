"""Which errors are the user's business: these become one line, all others stay tracebacks."""

from __future__ import annotations

import sys

from cyclopts import CycloptsError


class UsageError(ValueError):
    """Wrong arguments or settings; the text says what was given and what is allowed."""


class CommandError(Exception):
    """A command cannot go on for a reason that has an exit status of its own."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def _driver_errors() -> tuple[type[BaseException], ...]:
    # Asked of the loaded module only: an error of a module that was never loaded cannot arrive.
    module = sys.modules.get("vramkit.driver")
    names = ("DriverError", "DriverNotFoundError")
    return tuple(getattr(module, name) for name in names if hasattr(module, name))


def describe_error(error: Exception) -> str | None:
    """One line for a user, or None where the error is a fault of vramkit itself."""
    if isinstance(error, CycloptsError):
        return wrong_words(error, "vramkit")
    if isinstance(error, (UsageError, CommandError, OSError, *_driver_errors())):
        return _one_line(_file_error(error) or str(error))
    return None


def wrong_words(error: CycloptsError, *start: str) -> str:
    """What is wrong, and which command's help says more; its name begins with `start`."""
    command = " ".join([*start, *(error.command_chain or ())])
    return f"{_one_line(str(error))} See `{command} --help`."


def _file_error(error: Exception) -> str:
    """Of a file that the system names: without the number of the error."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return ""


def exit_status(error: Exception) -> int:
    if isinstance(error, CommandError):
        return error.status
    return 2 if isinstance(error, (CycloptsError, UsageError)) else 1


def _one_line(text: str) -> str:
    return " ".join(text.split())
