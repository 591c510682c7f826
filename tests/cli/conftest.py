"""Runs the `vramkit` command as users do: in a process of its own, on the simulated GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .support import Vramkit


@pytest.fixture
def vramkit(tmp_path: Path) -> Vramkit:
    """vramkit("doctor", "--json", VRAMKIT_DRIVER="sim"): a value of None takes a variable away."""

    def run(*arguments: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("VRAMKIT_DRIVER", "VRAMKIT_SIM", "VRAMKIT_DEBUG")
        }
        environment |= {name: value for name, value in variables.items() if value is not None}
        return subprocess.run(
            [sys.executable, "-m", "vramkit.cli", *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run
