"""`--pool`: vramkit's pool under PyTorch, CuPy or RMM in a Python program that knows nothing of it.

A folder that comes first in PYTHONPATH has a sitecustomize, which Python imports when it starts. It
installs hooks for the frameworks, and then runs the sitecustomize that it hides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parent / "site"


@contextmanager
def pooling() -> Iterator[dict[str, str]]:
    """What the program's environment has to be given."""
    paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    yield {"PYTHONPATH": os.pathsep.join(paths)}
