"""`--pool`: vramkit's pool under PyTorch, CuPy or RMM in a Python program that knows nothing of it.

A folder that comes first in PYTHONPATH has a sitecustomize, which Python imports when it starts. It
installs hooks for the frameworks, and then runs the sitecustomize that it hides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parent / "site"


@contextmanager
def pooling(base: Mapping[str, str] = os.environ) -> Iterator[dict[str, str]]:
    """What the program's environment has to be given, beside `base`."""
    paths = [str(FOLDER), *filter(None, [base.get("PYTHONPATH")])]
    yield {"PYTHONPATH": os.pathsep.join(paths)}
