"""Whether two machines have the same vramkit: versions alone do not tell checkouts apart."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def fingerprint() -> str:
    """Of the package's Python files, with their names. The compiled part differs from build to
    build of the same sources, and is not in it. It takes some 10 ms, once a process."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        for part in (str(path.relative_to(root)).encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
