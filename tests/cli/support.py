"""The type of the `vramkit` fixture."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Vramkit = Callable[..., subprocess.CompletedProcess[str]]
