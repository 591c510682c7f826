"""Types of the fixtures that run the `vramkit` command."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import NamedTuple

SETTINGS = ("VRAMKIT_DRIVER", "VRAMKIT_SIM", "VRAMKIT_DEBUG")

Vramkit = Callable[..., subprocess.CompletedProcess[str]]


class Done(NamedTuple):
    """What a command in this process returned and printed."""

    status: int
    stdout: str
    stderr: str


VramkitHere = Callable[..., Done]
