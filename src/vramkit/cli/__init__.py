"""The `vramkit` command. Importing it loads no command and opens no driver."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0 fine, 1 a problem, 2 wrong usage."""
    try:
        from vramkit.cli.app import main as run
    except KeyboardInterrupt:  # loading takes longer than the first Ctrl-C of the impatient
        return 130
    return run(arguments)
