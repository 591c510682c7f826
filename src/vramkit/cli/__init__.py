"""The `vramkit` command. Importing it loads no command and opens no driver."""

from __future__ import annotations

from vramkit.cli.app import main

__all__ = ["main"]
