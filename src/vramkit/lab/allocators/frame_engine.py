"""Tables of cuDF series, with memory from RMM's current resource.

cuDF launches on the per-thread default stream, so that each worker has one of its own. Known from
cuDF's documentation; no test runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramkit.lab.allocators.array_engine import STRIDE
from vramkit.lab.allocators.checksum import Sums
from vramkit.lab.allocators.engine import GROUPS, Engine
from vramkit.lab.experiment import Unmeasured


class FrameEngine:
    def __init__(self, cudf: Any, cupy: Any, synchronize: Callable[[], None]) -> None:
        self._cudf = cudf
        self._cupy = cupy
        self._synchronize = synchronize
        self._series: dict[int, Any] = {}
        self._made = 0
        self.sums = Sums()

    def column(self, rows: int, *, keys: bool = False) -> int:
        numbers = self._numbers(rows) * STRIDE
        return self._keep(numbers % (GROUPS if keys else 1009))

    def unique_keys(self, rows: int) -> int:
        return self._keep(rows - 1 - self._numbers(rows))

    def add(self, left: int, right: int) -> int:
        return self._keep(self._series[left] + self._series[right])

    def fused(self, columns: Sequence[int]) -> int:
        raise Unmeasured("cuDF's operations on series are not fused")

    def filter(self, column: int, keys: int) -> int:
        kept = self._series[column][self._series[keys] < GROUPS // 2]
        return self._keep(kept.reset_index(drop=True))

    def sort(self, column: int) -> int:
        return self._keep(self._series[column].sort_values(ignore_index=True))

    def group_by(self, keys: int, values: int) -> int:
        return self._keep(self._series[values].groupby(self._series[keys]).sum())

    def join(self, left: int, right: int) -> int:
        """cuDF promises no order of the matches: for the checksum they are sorted."""
        places = self._series[right].to_frame("key").reset_index()
        joined = self._series[left].to_frame("key").merge(places, on="key", how="inner")["index"]
        return self._keep(joined.sort_values(ignore_index=True) if self.sums.wanted else joined)

    def free(self, *columns: int) -> None:
        for column in columns:
            del self._series[column]

    def on(self, stream: int) -> FrameEngine:
        raise Unmeasured("cuDF has one stream for each thread")

    def hand_over(self, to: Engine, *columns: int) -> None:
        raise Unmeasured("cuDF has one stream for each thread")

    def finish(self) -> None:
        self._synchronize()

    finish_all = finish_event = finish

    def _numbers(self, rows: int) -> Any:
        return self._cudf.Series(self._cupy.arange(rows, dtype="int64"))

    def _keep(self, series: Any) -> int:
        self.sums.take(series)
        number = self._made
        self._made += 1
        self._series[number] = series
        return number
