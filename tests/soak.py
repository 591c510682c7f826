"""The long versions of tests, which `make soak` runs: VRAMKIT_SOAK=1, in native tests too."""

from __future__ import annotations

import os

SOAKING = os.environ.get("VRAMKIT_SOAK") == "1"


def rounds(quick: int, soak: int) -> int:
    """How many examples, turns or steps a test takes."""
    return soak if SOAKING else quick
