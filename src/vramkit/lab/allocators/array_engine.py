"""Tables of CuPy arrays: real kernels, with memory from whatever allocator CuPy was given.

Of CuPy it uses what NumPy has too, and streams, events and ElementwiseKernel. Known from the
documentation of CuPy 13 and 14; the tests use NumPy in CuPy's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any, cast

from vramkit.lab.allocators.checksum import Sums
from vramkit.lab.allocators.engine import GROUPS, Engine

STRIDE = 7919
"""A prime: steps through the numbers of a column in no order."""


@dataclass
class Arrays:
    """What the streams of one worker share."""

    by_number: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """The array, and the stream of its allocation."""
    made: int = 0
    streams: dict[int, Any] = field(default_factory=dict)
    fused: dict[int, Any] = field(default_factory=dict)
    """Kernels by the number of columns that they add up."""


class ArrayEngine:
    def __init__(self, cupy: Any, arrays: Arrays | None = None, stream: int = 0) -> None:
        self._cupy = cupy
        self.arrays = Arrays() if arrays is None else arrays
        streams = self.arrays.streams
        if stream not in streams:
            streams[stream] = cupy.cuda.Stream(non_blocking=True)
        self.stream = streams[stream]
        self.sums = Sums()

    def column(self, rows: int, *, keys: bool = False) -> int:
        with self.stream:
            numbers = self._cupy.arange(rows, dtype="int64") * STRIDE
            return self._keep(numbers % (GROUPS if keys else 1009))

    def unique_keys(self, rows: int) -> int:
        stride = STRIDE
        while gcd(stride, rows) != 1:
            stride += 1
        with self.stream:
            return self._keep(self._cupy.arange(rows, dtype="int64") * stride % rows)

    def add(self, left: int, right: int) -> int:
        with self.stream:
            return self._keep(self._array(left) + self._array(right))

    def fused(self, columns: Sequence[int]) -> int:
        with self.stream:
            return self._keep(self._adder(len(columns))(*map(self._array, columns)))

    def filter(self, column: int, keys: int) -> int:
        with self.stream:
            return self._keep(self._array(column)[self._array(keys) < GROUPS // 2])

    def sort(self, column: int) -> int:
        with self.stream:
            return self._keep(self._cupy.sort(self._array(column)))

    def group_by(self, keys: int, values: int) -> int:
        """The sums are of doubles, exact for these values."""
        with self.stream:
            sums = self._cupy.bincount(
                self._array(keys), weights=self._array(values), minlength=GROUPS
            )
            return self._keep(sums.astype("int64"))

    def join(self, left: int, right: int) -> int:
        """By a sorted copy of the right side and a search in it; keys that are not there get the
        place of another one."""
        with self.stream:
            wanted, others = self._array(left), self._array(right)
            order = self._cupy.argsort(others)
            ranked = others[order]
            places = self._cupy.searchsorted(ranked, wanted) % len(others)
            self._read((ranked[places] == wanted).sum())
            return self._keep(order[places])

    def free(self, *columns: int) -> None:
        """CuPy gives a block back at the point that the stream of its allocation has reached."""
        with self.stream:
            for column in columns:
                _, owner = self.arrays.by_number[column]
                if owner is not self.stream:
                    owner.wait_event(self.stream.record())
                del self.arrays.by_number[column]

    def on(self, stream: int) -> ArrayEngine:
        other = ArrayEngine(self._cupy, self.arrays, stream)
        other.sums = self.sums
        return other

    def hand_over(self, to: Engine, *columns: int) -> None:
        cast(ArrayEngine, to).stream.wait_event(self.stream.record())

    def finish(self) -> None:
        self.stream.synchronize()

    def finish_all(self) -> None:
        self._cupy.cuda.Device().synchronize()

    def finish_event(self) -> None:
        self.stream.record().synchronize()

    def _read(self, number: Any) -> int:
        """The host waits for it."""
        return int(number)

    def _array(self, column: int) -> Any:
        return self.arrays.by_number[column][0]

    def _keep(self, array: Any) -> int:
        arrays = self.arrays
        self.sums.take(array)
        number = arrays.made
        arrays.made += 1
        arrays.by_number[number] = array, self.stream
        return number

    def _adder(self, count: int) -> Any:
        kernels = self.arrays.fused
        if count not in kernels:
            inputs = [f"x{number}" for number in range(count)]
            kernels[count] = self._cupy.ElementwiseKernel(
                ", ".join(f"int64 {name}" for name in inputs),
                "int64 y",
                f"y = {' + '.join(inputs)}",
                f"add_{count}_columns",
            )
        return kernels[count]
