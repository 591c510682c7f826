"""Fewer points for a drawing of so many columns, without losing what it shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Point = tuple[float, float]


def thinned(points: Iterable[Point], columns: int) -> list[Point]:
    """Of each column the first point, the lowest, the highest and the last, in their order.

    Points are in the order of x, which runs from 0 to 1. A line through those that are kept covers
    the same heights in each column as one through all.
    """
    kept: list[Point] = []
    for column in _columns(points, columns):
        if len(column) <= 4:
            kept += column
            continue
        heights = [y for _, y in column]
        ends = {0, heights.index(min(heights)), heights.index(max(heights)), len(column) - 1}
        kept += [column[index] for index in sorted(ends)]
    return kept


def _columns(points: Iterable[Point], columns: int) -> Iterator[list[Point]]:
    column: list[Point] = []
    at = 0
    for point in points:
        place = int(point[0] * columns)
        if column and place != at:
            yield column
            column = []
        at = place
        column.append(point)
    if column:
        yield column
