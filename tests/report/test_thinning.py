"""Thinning: few points a column, and no height of any column lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vramkit.report.thinning import Point, thinned

shares = st.floats(0, 1, allow_nan=False)


def heights(points: list[Point], columns: int) -> dict[int, tuple[float, float]]:
    """Lowest and highest of each column."""
    found: dict[int, list[float]] = {}
    for x, y in points:
        found.setdefault(int(x * columns), []).append(y)
    return {column: (min(ys), max(ys)) for column, ys in found.items()}


@given(st.lists(st.tuples(shares, shares), max_size=300).map(sorted), st.integers(1, 20))
def test_each_column_keeps_its_extremes_and_its_ends(points: list[Point], columns: int) -> None:
    kept = thinned(points, columns)
    assert heights(kept, columns) == heights(points, columns)
    assert kept[:1] == points[:1] and kept[-1:] == points[-1:]
    assert [point[0] for point in kept] == sorted(point[0] for point in kept)
    assert len(kept) <= 4 * (columns + 1)
    assert set(kept) <= set(points)


def test_a_single_peak_among_many_points_stays() -> None:
    points = [(at / 100_000, 0.0) for at in range(100_000)]
    points[54_321] = (0.54321, 1.0)
    kept = thinned(points, 500)
    assert (0.54321, 1.0) in kept
    assert len(kept) <= 2000
