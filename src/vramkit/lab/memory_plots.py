"""Memory along a program as plots: what is in use and held, and where it is at the peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vramkit.driver import OutOfMemoryError
from vramkit.lab.experiment import Lab, Measured, Unmeasured
from vramkit.lab.result import Row
from vramkit.lab.subjects import SUBJECTS
from vramkit.lab.watched import Opened, Watched, pool_at_peak
from vramkit.pool.map import map_block
from vramkit.report.blocks import Axis, Level, LineChart, MemoryMap, Series

if TYPE_CHECKING:
    from vramkit.lab.subjects import Allocator
    from vramkit.pool.snapshot import Snapshot

MAP_ROWS = 24
PEAKS = "The peaks of equal stretches of the program."
SIZES_NOT_DRAWN = "Allocators that take a size of their own at once are not drawn."
"""For charts of without_size()."""


# Of one row, where it is measured


def with_plots(
    values: dict[str, float], lab: Lab, opened: Opened, go: Callable[[Allocator], object]
) -> Measured:
    """The values, in the first repetition with what the plots need, for which all is done once
    more, twice for vramkit's pool: looking at an allocator takes time, and Python to call it.

    One that only just fits may run out of memory this time, or the card may have less free than
    before. It then has no plots, and keeps its values.
    """
    if lab.repetition > 0:
        return Measured(values)
    try:
        with opened() as allocator:
            watched = Watched(allocator)
            go(watched)
        snapshot = pool_at_peak(opened, go, watched)
    except (OutOfMemoryError, Unmeasured):
        return Measured(values)
    drawings = [] if snapshot is None else [peak_map(snapshot)]
    return Measured(values, watched.series(), [*drawings])


def peak_map(snapshot: Snapshot) -> MemoryMap:
    return map_block(snapshot, "Memory of vramkit's pool when it held most", MAP_ROWS)


# Of a whole report


def peak_maps(rows: Sequence[Row]) -> list[MemoryMap]:
    """Those that were drawn where the rows were measured."""
    drawings = [drawing for row in rows for drawing in row.drawings]
    return [each for each in drawings if isinstance(each, MemoryMap)]


def memory_over_time(
    title: str, rows: Sequence[Row], caption: str = "", levels: Sequence[Level] = ()
) -> list[LineChart]:
    """One chart of the rows of a program, which all went the same way; none where no row has the
    series of Watched: of results from before there were any, and of allocators that cannot tell."""
    drawn = [row for row in rows if _is_whole(row)]
    if not drawn:
        return []
    lines = [
        _series("in use", drawn[0], "in_use"),
        *(_series(f"held by {row.subject}", row, "held") for row in drawn),
    ]
    x, y = Axis("allocations and frees"), Axis("memory", "bytes")
    return [LineChart(title, lines, x, y, list(levels), f"{PEAKS} {caption}".strip())]


def without_size(rows: Sequence[Row]) -> list[Row]:
    """Of allocators that take a size of their own at once one would see nothing else."""
    return [
        row for row in rows if row.subject not in SUBJECTS or not SUBJECTS[row.subject].needs_size
    ]


def _is_whole(row: Row) -> bool:
    """A result may have been changed by others."""
    lengths = {len(row.series.get(name, ())) for name in ("event", "in_use", "held")}
    return len(lengths) == 1 and 0 not in lengths


def _series(name: str, row: Row, which: str) -> Series:
    points = zip(row.series["event"], row.series[which], strict=True)
    return Series(name, [(at, value) for at, value in points], step=True)
