"""A snapshot's memory cut into rows of cells, for drawing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vramkit.pool.snapshot import Block, Extent, Snapshot
from vramkit.pool.sums import by_stream
from vramkit.report.blocks import MEMORY_NAMES, MapRow, MemoryMap, MemoryState, Run
from vramkit.report.units import bytes_text

CELLS = 64
ROW = 32 << 20
LEAST_ROW = 2 << 20  # a page of the card: no extent is smaller
FEW_ROWS = 8  # fewer than these, and rows are made shorter, so that a small pool can be seen
MOST_ROWS = 160  # more than these, and cells are made larger, so that the page stays small
FREE: tuple[MemoryState, ...] = ("cached", "waiting", "idle", "rest", "none")


class Segment(NamedTuple):
    """A block, or memory of an extent between blocks."""

    start: int
    end: int
    state: MemoryState
    block: Block | None


class Cell:
    """The sum of what is in one cell."""

    __slots__ = ("classes", "count", "extent", "nbytes", "segment", "streams")

    def __init__(self) -> None:
        self.nbytes: dict[MemoryState, int] = {}
        self.segment: Segment | None = None  # the last one
        self.extent = -1
        self.count = 0  # of segments
        self.classes: set[int] = set()
        self.streams: set[int] = set()

    def add(self, segment: Segment, extent: int, nbytes: int) -> None:
        self.nbytes[segment.state] = self.nbytes.get(segment.state, 0) + nbytes
        self.segment = segment
        self.extent = extent
        self.count += 1
        if segment.block is not None:
            self.classes.add(segment.block.bytes)
            if segment.block.stream >= 0:
                self.streams.add(segment.block.stream)

    def whole(self, cell_bytes: int) -> Segment | None:
        """The one segment that fills the cell."""
        full = sum(self.nbytes.values()) == cell_bytes
        return self.segment if full and self.count == 1 else None


def memory_map(
    snapshot: Snapshot, title: str, stack_names: Mapping[int, str], most_rows: int = MOST_ROWS
) -> MemoryMap:
    """`stack_names` are short names of stacks, by address of the block."""
    row_bytes = _row_bytes(snapshot.extents, most_rows)
    cell_bytes = row_bytes // CELLS
    rows = _rows(snapshot, row_bytes)
    ranks = {number: rank for rank, (number, _) in enumerate(by_stream(snapshot))}
    drawing = _Drawing(snapshot, cell_bytes, ranks, stack_names)
    drawn = []
    above: int | None = None
    for number in sorted(rows):
        address = snapshot.extents[0].address + number * row_bytes
        cells = rows[number]
        sums: dict[MemoryState, int] = {
            state: sum(cell.nbytes.get(state, 0) for cell in cells) for state in MEMORY_NAMES
        }
        apart = above is not None and number != above + 1
        drawn.append(MapRow(address, list(drawing.runs(address, cells)), sums, apart))
        above = number
    return MemoryMap(
        title,
        CELLS,
        cell_bytes,
        drawn,
        streams=[snapshot.stream_name(number) for number in ranks],
        caption=f"A row is {bytes_text(row_bytes)} of addresses, a cell {bytes_text(cell_bytes)}; "
        "a bar is one block or a stretch of like ones, filled as high as it is in use.",
    )


def _row_bytes(extents: list[Extent], most_rows: int) -> int:
    row = ROW
    while row > LEAST_ROW and _count_rows(extents, row) < min(FEW_ROWS, most_rows):
        row //= 2
    while _count_rows(extents, row) > most_rows:
        row *= 2
    return row


def _count_rows(extents: list[Extent], row: int) -> int:
    count, last = 0, -1
    for extent in extents:
        start = extent.address - extents[0].address
        first = max(start // row, last + 1)
        last = (start + extent.bytes - 1) // row
        count += last + 1 - first
    return count


def _segments(snapshot: Snapshot) -> Iterator[tuple[int, Segment]]:
    """Everything mapped, by address, each with the number of its extent."""
    blocks = iter(snapshot.blocks)
    block = next(blocks, None)
    for number, extent in enumerate(snapshot.extents):
        at, end = extent.address, extent.address + extent.bytes
        while block is not None and block.address < end:
            for bare in _without_block(snapshot, at, block.address):
                yield number, bare
            at = block.address + block.bytes
            yield number, Segment(block.address, at, block.state, block)
            block = next(blocks, None)
        for bare in _without_block(snapshot, at, end):
            yield number, bare


def _without_block(snapshot: Snapshot, start: int, end: int) -> Iterator[Segment]:
    """Memory between blocks: rest inside a slab, idle outside of slabs."""
    slabs = snapshot.slabs
    while start < end:
        state: MemoryState = "idle"
        stop = end
        following = bisect_right(slabs, start, key=lambda slab: slab.address)
        slab_end = slabs[following - 1].address + slabs[following - 1].bytes if following else 0
        if start < slab_end:
            state, stop = "rest", min(end, slab_end)
        elif following < len(slabs):
            stop = min(end, slabs[following].address)
        yield Segment(start, stop, state, None)
        start = stop


def _rows(snapshot: Snapshot, row_bytes: int) -> dict[int, list[Cell]]:
    """Cells by the number of their row, counted from the first extent."""
    cell_bytes = row_bytes // CELLS
    base = snapshot.extents[0].address if snapshot.extents else 0
    rows: dict[int, list[Cell]] = {}
    for extent, segment in _segments(snapshot):
        begin, stop = segment.start - base, segment.end - base
        for index in range(begin // cell_bytes, (stop - 1) // cell_bytes + 1):
            row = rows.get(index // CELLS)
            if row is None:
                row = rows[index // CELLS] = [Cell() for _ in range(CELLS)]
            inside = min(stop, (index + 1) * cell_bytes) - max(begin, index * cell_bytes)
            row[index % CELLS].add(segment, extent, inside)
    return rows


class _Drawing:
    def __init__(
        self,
        snapshot: Snapshot,
        cell_bytes: int,
        ranks: Mapping[int, int],
        stack_names: Mapping[int, str],
    ) -> None:
        self._snapshot = snapshot
        self._cell_bytes = cell_bytes
        self._ranks = ranks
        self._stack_names = stack_names

    def runs(self, address: int, cells: list[Cell]) -> Iterator[Run]:
        begin = 0
        for index in range(1, len(cells) + 1):
            if index == len(cells) or self._look(cells[index]) != self._look(cells[begin]):
                yield self._run(address + begin * self._cell_bytes, cells[begin:index])
                begin = index

    def _look(self, cell: Cell) -> object:
        """Cells with the same look are drawn as one."""
        whole = cell.whole(self._cell_bytes)
        if whole is not None:
            return whole.start
        return (
            self._used(cell),
            self._free(cell),
            cell.extent,
            _only(cell.classes),
            _only(cell.streams),
        )

    def _used(self, cell: Cell) -> int:
        """Eighths in use; what is in use shows, however small."""
        live = cell.nbytes.get("live", 0)
        return max(round(8 * live / self._cell_bytes), 1 if live else 0)

    def _free(self, cell: Cell) -> MemoryState:
        none = self._cell_bytes - sum(cell.nbytes.values())
        return max(FREE, key=lambda state: none if state == "none" else cell.nbytes.get(state, 0))

    def _run(self, address: int, cells: list[Cell]) -> Run:
        first = cells[0]
        if first.segment is None:
            return Run(len(cells), 0, "none")
        whole = first.whole(self._cell_bytes)
        tip = self._mixed(address, cells) if whole is None else self._segment(whole)
        stream = _only(first.streams)
        rank = -1 if stream is None else self._ranks[stream]
        return Run(len(cells), self._used(first), self._free(first), tip, rank)

    def _segment(self, segment: Segment) -> str:
        size = bytes_text(segment.end - segment.start)
        text = f"{segment.start:#x}: {size} {MEMORY_NAMES[segment.state]}"
        block = segment.block
        if block is None:
            return text
        if block.asked:
            text += f", {bytes_text(block.asked)} asked for"
        if block.stream >= 0:
            text += f", {self._snapshot.stream_name(block.stream)}"
        if name := self._stack_names.get(block.address):
            text += f"\n{name}"
        return text

    def _mixed(self, address: int, cells: list[Cell]) -> str:
        nbytes = {state: sum(cell.nbytes.get(state, 0) for cell in cells) for state in MEMORY_NAMES}
        parts = ", ".join(
            f"{bytes_text(held)} {MEMORY_NAMES[state]}" for state, held in nbytes.items() if held
        )
        text = f"{address:#x}: {parts}"
        classes = set[int]().union(*(cell.classes for cell in cells))
        if len(classes) == 1:
            text += f"\nblocks of {bytes_text(min(classes))}"
        elif classes:
            text += f"\nblocks of {bytes_text(min(classes))} to {bytes_text(max(classes))}"
        streams = set[int]().union(*(cell.streams for cell in cells))
        if len(streams) == 1:
            text += f", {self._snapshot.stream_name(min(streams))}"
        elif streams:
            text += f", {len(streams)} streams"
        return text


def _only(found: set[int]) -> int | None:
    return next(iter(found)) if len(found) == 1 else None
