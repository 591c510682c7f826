"""What workloads ask of an engine for tables: the model and CuPy answer to it.

An engine
1. has columns of 8-byte integers, which are numbers from 0 on for whoever uses it;
2. works in the order of one stream of one thread; on() is the same engine on another stream;
3. gives an operation's temporary memory back when its last kernel is launched, in stream order;
4. keeps what operations return until free(), which needs an order behind all use of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

WIDTH = 8
"""Bytes of a row of a column."""
GROUPS = 1000
"""Different keys of a column of keys."""


class Engine(Protocol):
    def column(self, rows: int, *, keys: bool = False) -> int:
        """A new column; of keys: numbers below GROUPS, each as often as the others."""
        ...

    def add(self, left: int, right: int) -> int: ...

    def fused(self, columns: Sequence[int]) -> int:
        """The sum of all columns, by one kernel that keeps what is between in registers."""
        ...

    def filter(self, column: int, keys: int) -> int:
        """The rows whose key is below GROUPS / 2; the host waits for their number."""
        ...

    def sort(self, column: int) -> int: ...

    def group_by(self, keys: int, values: int) -> int:
        """The sum of the values of each key; the host waits for the number of keys."""
        ...

    def join(self, left: int, right: int) -> int:
        """Of each key of the left column, its place among the right ones, of which each is there
        once; the host waits for the number of matches."""
        ...

    def unique_keys(self, rows: int) -> int:
        """A new column in which each number below `rows` is there once, in no order."""
        ...

    def free(self, *columns: int) -> None: ...

    def on(self, stream: int) -> Engine: ...

    def hand_over(self, to: Engine, *columns: int) -> None:
        """From here on the columns are the other stream's, which waits on the card for this one."""
        ...

    def finish(self) -> None:
        """The host waits for the stream."""
        ...

    def finish_all(self) -> None:
        """The host waits for the card."""
        ...

    def finish_event(self) -> None:
        """The host waits for an event at this point of the stream."""
        ...
