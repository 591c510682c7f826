"""Where the time goes with CuPy's kernels: a round of its own, with clocks in it.

Allocation is host time in malloc and free of the allocator, and waits are that of calls which wait
for the card: of those that do nothing else, and of the operations that read a size back, with their
launches. Kernels is time of the card in which a stream had an operation under way, by events around
each one: where the card waits for the host in the middle of one, that is in it.

Known from the documentation of CuPy 13 and 14; the tests use NumPy in CuPy's place.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vramkit.lab.allocators.array_engine import ArrayEngine, Arrays
from vramkit.lab.allocators.install import owned_by
from vramkit.lab.allocators.stopwatch import Part, Stopwatch

if TYPE_CHECKING:
    from vramkit.lab.allocators.frameworks import Work
    from vramkit.lab.allocators.install import Malloc

HOST_PARTS: tuple[Part, ...] = ("allocation", "launch", "wait")


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.stopwatch = Stopwatch()


class Split:
    """What the engines and the allocator of a round share."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._own = _OfThread()

    @property
    def stopwatch(self) -> Stopwatch:
        """The calling thread's."""
        return self._own.stopwatch

    def engine(self) -> SplitEngine:
        return SplitEngine(self._cupy, self)

    def clocked(self, malloc: Malloc) -> Malloc:
        """The same memory, with a clock around each call that takes or gives back a block."""

        def clocked_malloc(size: int) -> Any:
            with self.stopwatch.during("allocation"):
                pointer = malloc(size)
            return owned_by(self._cupy, _Block(self, pointer), pointer, size)

        return clocked_malloc

    def measure(self, work: Work) -> dict[str, float]:
        """Milliseconds of the round, and of its parts: of the host as the mean of the threads."""
        base: list[Any] = []
        spans: list[tuple[Any, Any]] = []
        spent: list[dict[Part, int]] = []

        def first(number: int, engine: SplitEngine, columns: list[int]) -> None:
            if number == 0:
                base.append(engine.stream.record())
            work.items(engine, columns, 1)

        def steady(number: int, engine: SplitEngine, columns: list[int]) -> None:
            engine.spans.clear()
            engine.stopwatch.restart()
            work.items(engine, columns)
            spent.append(dict(engine.stopwatch.spent))
            spans.extend(engine.spans)

        _, nanoseconds = work.run([first, steady])
        elapsed = self._cupy.cuda.get_elapsed_time
        busy = covered((elapsed(base[0], begin), elapsed(base[0], end)) for begin, end in spans)
        parts: dict[str, float] = {
            part: sum(each[part] for each in spent) / 1e6 / len(spent) for part in HOST_PARTS
        }
        return {"split_time": nanoseconds / 1e6, "kernels": busy, **parts}


class _Block:
    """Keeps a block; whoever drops the last reference to it frees the block."""

    __slots__ = ("_pointer", "_split")

    def __init__(self, split: Split, pointer: Any) -> None:
        self._split = split
        self._pointer = pointer

    def __del__(self) -> None:
        with self._split.stopwatch.during("allocation"):
            self._pointer = None


class SplitEngine(ArrayEngine):
    """Tells the stopwatch of its thread what it does, and puts events around each operation."""

    def __init__(
        self,
        cupy: Any,
        split: Split,
        arrays: Arrays | None = None,
        stream: int = 0,
        spans: list[tuple[Any, Any]] | None = None,
    ) -> None:
        super().__init__(cupy, arrays, stream)
        self._split = split
        self.stopwatch = split.stopwatch
        self.spans: list[tuple[Any, Any]] = [] if spans is None else spans
        """The events before and behind each operation, of all streams of the worker."""

    def on(self, stream: int) -> SplitEngine:
        other = SplitEngine(self._cupy, self._split, self.arrays, stream, self.spans)
        other.sums = self.sums
        return other

    def add(self, left: int, right: int) -> int:
        with self._operation("launch"):
            return super().add(left, right)

    def fused(self, columns: Sequence[int]) -> int:
        with self._operation("launch"):
            return super().fused(columns)

    def filter(self, column: int, keys: int) -> int:
        with self._operation("wait"):
            return super().filter(column, keys)

    def sort(self, column: int) -> int:
        with self._operation("launch"):
            return super().sort(column)

    def group_by(self, keys: int, values: int) -> int:
        with self._operation("wait"):
            return super().group_by(keys, values)

    def join(self, left: int, right: int) -> int:
        with self._operation("launch"):
            return super().join(left, right)

    def free(self, *columns: int) -> None:
        with self.stopwatch.during("launch"):
            super().free(*columns)

    def hand_over(self, to: Any, *columns: int) -> None:
        with self.stopwatch.during("launch"):
            super().hand_over(to, *columns)

    def finish(self) -> None:
        with self.stopwatch.during("wait"):
            super().finish()

    def finish_all(self) -> None:
        with self.stopwatch.during("wait"):
            super().finish_all()

    def finish_event(self) -> None:
        with self.stopwatch.during("wait"):
            super().finish_event()

    def _read(self, number: Any) -> int:
        with self.stopwatch.during("wait"):
            return super()._read(number)

    @contextmanager
    def _operation(self, part: Part) -> Iterator[None]:
        with self.stopwatch.during(part):
            begin = self.stream.record()
            yield
            self.spans.append((begin, self.stream.record()))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """How much of the line lies in at least one of them."""
    length, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        length += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return length
