"""The axes that a chart needs for its values, for every output that draws it."""

from __future__ import annotations

from dataclasses import dataclass

from vramkit.report.axis import Scale, linear_scale, log_scale
from vramkit.report.blocks import Axis, BarChart, LineChart
from vramkit.report.thinning import Point


def bar_scale(block: BarChart, ticks: int) -> Scale | None:
    """None where there is nothing to measure along it."""
    figures = [each for bar in block.bars for each in (bar.value, bar.low, bar.high)]
    known = [each for each in figures if each is not None]
    if not known:
        return None
    if block.scale == "log":
        return log_scale(known, block.unit, ticks)
    return linear_scale(known, block.unit, ticks)


def series_names(block: BarChart) -> list[str]:
    """In the order in which they appear."""
    return list(dict.fromkeys(bar.series for bar in block.bars))


@dataclass(frozen=True)
class Axes:
    x: Scale
    y: Scale

    def place(self, x: float, y: float) -> Point:
        """From the upper left corner, in shares of the drawing."""
        return self.x.share(x), 1 - self.y.share(y)

    def shows(self, x: float, y: float | None) -> bool:
        return y is not None and self.x.shows(x) and self.y.shows(y)


def axes_of(block: LineChart, x_ticks: int, y_ticks: int) -> Axes | None:
    """None where no point has a place on them."""
    points = [
        (x, y)
        for series in block.series
        for x, y in series.points
        if y is not None and (x > 0 or block.x.scale == "linear")
    ]
    ys = [y for _, y in points if y > 0 or block.y.scale == "linear"]
    if not ys:
        return None
    ys += [end for series in block.series for pair in series.band for end in pair]
    ys += [level.value for level in block.levels]
    return Axes(
        _scale(block.x, [x for x, _ in points], x_ticks, 0.0),
        _scale(block.y, ys, y_ticks, 0.04),
    )


def _scale(axis: Axis, values: list[float], ticks: int, room: float) -> Scale:
    if axis.scale == "log":
        return log_scale(values, axis.unit, ticks)
    return linear_scale(values, axis.unit, ticks, from_zero=axis.from_zero, room=room)
