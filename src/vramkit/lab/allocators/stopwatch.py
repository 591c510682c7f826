"""The host time of one thread, by what it was spent on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Part = Literal["own", "allocation", "launch", "wait"]


class Stopwatch:
    """Each moment belongs to one part: what begins inside another part is taken out of it."""

    def __init__(self) -> None:
        self._now = time.perf_counter_ns
        self._part: Part = "own"
        self.restart()

    def restart(self) -> None:
        self.spent: dict[Part, int] = dict.fromkeys(("own", "allocation", "launch", "wait"), 0)
        """Nanoseconds, up to the last switch()."""
        self._since = self._now()

    def switch(self, part: Part) -> Part:
        """From here on time belongs to `part`. Returns the one before, to switch back to."""
        now = self._now()
        self.spent[self._part] += now - self._since
        before, self._part, self._since = self._part, part, now
        return before

    @contextmanager
    def during(self, part: Part) -> Iterator[None]:
        before = self.switch(part)
        try:
            yield
        finally:
            self.switch(before)
