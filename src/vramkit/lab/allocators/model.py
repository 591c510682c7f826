"""A model of a table engine, in the manner of cuDF: what each operation allocates and launches.

A block is written by a kernel of its own (TOUCH); what an operation reads, and its passes over
memory that it has written before, are kernels that last as long as the card needs for the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from vramkit.lab.allocators.engine import GROUPS, WIDTH, Engine
from vramkit.lab.program import Op, Program, ProgramBuilder

if TYPE_CHECKING:
    from vramkit.driver import Device

REACHED = 0.7
"""Part of the bandwidth on paper that kernels reach: 3.5 of 4.9 TB/s on an H200."""
TILE = 2048
"""Rows of a block of a kernel that counts before it writes."""
INDEX = 4
"""Bytes of a row number."""
DIGIT_BITS = 8
"""Of a key that one pass of a radix sort deals with."""
SORT_TABLE = 1 << 20
"""Bytes of the tables of a radix sort."""
SHORTEST_NS = 2000
"""Of a kernel, however few its bytes."""


def bytes_per_second(device: Device) -> float:
    """What kernels reach on this card."""
    clock_khz = device.attribute("MEMORY_CLOCK_RATE")
    bits = device.attribute("GLOBAL_MEMORY_BUS_WIDTH")
    if clock_khz <= 0 or bits <= 0:
        raise RuntimeError(
            f"{device.name} does not say its memory's clock and width, which kernels are modelled "
            "after; give the bytes a second that they reach by --set bandwidth=..."
        )
    return 2 * clock_khz * 1e3 * bits / 8 * REACHED


@dataclass
class Model:
    """Columns are blocks of the program; all engines of a program share `rows` and `events`."""

    builder: ProgramBuilder
    rate: float
    """Bytes a second."""
    thread: int = 0
    stream: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    events: dict[tuple[int, int], int] = field(default_factory=dict)

    def column(self, rows: int, *, keys: bool = False) -> int:
        return self._written(rows * WIDTH, rows)

    def unique_keys(self, rows: int) -> int:
        return self.column(rows)

    def add(self, left: int, right: int) -> int:
        return self.fused((left, right))

    def fused(self, columns: Sequence[int]) -> int:
        rows = self.rows[columns[0]]
        result = self._written(rows * WIDTH, rows)
        self._work(len(columns) * rows * WIDTH)
        return result

    def filter(self, column: int, keys: int) -> int:
        """A mask, its counts by tiles and their prefix sums, then the rows that stay."""
        rows = self.rows[column]
        mask = self._written(rows)
        counts = self._written(_tiles(rows) * INDEX)
        self._work(rows * WIDTH + rows)
        offsets = self._written((_tiles(rows) + 1) * INDEX)
        self.finish()
        kept = max(1, rows // 2)
        result = self._written(kept * WIDTH, kept)
        self._work(rows + rows * WIDTH)
        self.free(mask, counts, offsets)
        return result

    def sort(self, column: int) -> int:
        """Row numbers by radix sort between two pairs of buffers, then a gather."""
        rows = self.rows[column]
        buffers = [self._written(rows * width) for width in (WIDTH, WIDTH, INDEX, INDEX)]
        table = self._written(SORT_TABLE)
        for _ in range(8 * WIDTH // DIGIT_BITS):
            self._work(2 * rows * (WIDTH + INDEX))
        result = self._written(rows * WIDTH, rows)
        self._work(rows * (WIDTH + INDEX))
        self.free(*buffers, table)
        return result

    def group_by(self, keys: int, values: int) -> int:
        """A hash table half full, sums of every row that may be a group, then the groups alone."""
        rows = self.rows[keys]
        table = self._written(2 * rows * INDEX)
        sums = self._written(rows * WIDTH)
        self._work(2 * rows * WIDTH + rows * (INDEX + WIDTH))
        self.finish()
        groups = min(rows, GROUPS)
        result = self._written(groups * WIDTH, groups)
        self._work(groups * 2 * WIDTH)
        self.free(table, sums)
        return result

    def join(self, left: int, right: int) -> int:
        """A hash table of the right side, a probe that counts, one that writes, then a gather."""
        rows, others = self.rows[left], self.rows[right]
        table = self._written(2 * others * 2 * INDEX)
        self._work(others * (WIDTH + 2 * INDEX))
        counts = self._written(_tiles(rows) * INDEX)
        self._work(rows * (WIDTH + 2 * INDEX))
        self.finish()
        matches = [self._written(rows * INDEX) for _ in range(2)]
        self._work(rows * (WIDTH + 2 * INDEX))
        result = self._written(rows * WIDTH, rows)
        self._work(rows * (INDEX + WIDTH))
        self.free(table, counts, *matches)
        return result

    def free(self, *columns: int) -> None:
        for column in columns:
            self.rows.pop(column, None)
            self.builder.free(column, self.stream, thread=self.thread)

    def on(self, stream: int) -> Model:
        return Model(self.builder, self.rate, self.thread, stream, self.rows, self.events)

    def hand_over(self, to: Engine, *columns: int) -> None:
        event = self._event()
        self.builder.record(event, self.stream, thread=self.thread)
        other = cast(Model, to)
        self.builder.wait(event, other.stream, thread=other.thread)

    def finish(self) -> None:
        self.builder.wait_for_stream(self.stream, thread=self.thread)

    def finish_all(self) -> None:
        self.builder.wait_for_device(thread=self.thread)

    def finish_event(self) -> None:
        event = self._event()
        self.builder.record(event, self.stream, thread=self.thread)
        self.builder.wait_for_event(event, thread=self.thread)

    def _event(self) -> int:
        """Each stream of a thread has one, which is recorded again and again."""
        return self.events.setdefault((self.thread, self.stream), len(self.events))

    def _written(self, size: int, rows: int = 0) -> int:
        block = self.builder.allocate(size, self.stream, thread=self.thread)
        self.builder.touch(block, self.stream, thread=self.thread)
        if rows:
            self.rows[block] = rows
        return block

    def _work(self, nbytes: int) -> None:
        nanoseconds = max(SHORTEST_NS, round(nbytes / self.rate * 1e9))
        self.builder.kernel(nanoseconds, self.stream, thread=self.thread)


def _tiles(rows: int) -> int:
    return -(-rows // TILE)


def kernel_seconds(program: Program, rate: float, section: int | None = None) -> float:
    """How long the kernels of a program, or of a section, take one after the other."""
    nanoseconds, current = 0.0, 0
    for op, what in zip(program.ops, program.what, strict=True):
        if op == Op.SECTION:
            current = what
        elif section is not None and current != section:
            continue
        elif op == Op.KERNEL:
            nanoseconds += what
        elif op == Op.TOUCH:
            nanoseconds += max(SHORTEST_NS, program.sizes[what] / rate * 1e9)
    return nanoseconds / 1e9
