"""One number of all that a worker's operations returned: it must not depend on the allocator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MODULUS = 1 << 40
"""Exact in a float, also as a sum over all workers."""


@dataclass
class Sums:
    wanted: bool = False
    """The host waits for each result then."""
    checksum: int = 0

    def take(self, column: Any) -> None:
        if self.wanted:
            self.checksum = (self.checksum * 31 + int(column.sum())) % MODULUS
