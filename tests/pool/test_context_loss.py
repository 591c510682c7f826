"""After an error that ends the context, as a kernel's bad access does: nothing hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "lost_context.py"
LOST = "CUDA_ERROR_ILLEGAL_ADDRESS"
REFUSED = {"the kernel": "cuStreamSynchronize", "preallocate": "cuMemGetInfo_v2"}


def test_a_lost_context_costs_an_error_at_most(request: pytest.FixtureRequest) -> None:
    """The driver still maps and unmaps memory then, so that little is refused."""
    command = [sys.executable, "-W", "error", str(PROGRAM), request.config.getoption("driver")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    outcomes = json.loads(done.stdout)
    refused = {name: words for name, words in outcomes.items() if words != "served"}
    assert refused.keys() == REFUSED.keys()
    for name, call in REFUSED.items():
        assert refused[name].startswith(f"{call} failed: {LOST} (700)")
