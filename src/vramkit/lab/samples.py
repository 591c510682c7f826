"""Repetitions of one figure: their middle, their spread, and what a difference is worth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

FEWEST = 5
"""Repetitions below which no difference is called one."""
NOISE = 0.01
"""Differences of medians up to this part count as none: two builds of one program have them."""


class Spread(msgspec.Struct, frozen=True):
    """Of repetitions: the median, and the tenth and ninetieth percentile."""

    median: float
    p10: float
    p90: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Raises ValueError without values."""
        if not values:
            raise ValueError("no values")
        ordered = sorted(values)
        return Spread(
            statistics.median(ordered), _decile(ordered, 1), _decile(ordered, 9), len(ordered)
        )

    @property
    def relative(self) -> float:
        """Half of the distance from p10 to p90, as a part of the median."""
        return (self.p90 - self.p10) / 2 / self.median if self.median else 0.0


Verdict = Literal["lower", "higher", "no difference", "too few"]


class Difference(msgspec.Struct, frozen=True):
    """Of one figure from another, as a part of the other: -0.1 is 10 % lower; inf: from zero.

    `least` and `most` come from the percentiles at the far and the near ends.
    """

    verdict: Verdict
    relative: float
    least: float
    most: float


def compare(values: Sequence[float], other: Sequence[float]) -> Difference:
    """Whether the first are lower or higher than the others, beyond what repetitions scatter.

    A difference is one where the percentiles do not overlap (p90 of the one below p10 of the
    other), the medians are more than NOISE apart and both have FEWEST values. Of figures that
    repeat exactly two are enough. No value is below zero. Raises ValueError without values.
    """
    here, there = Spread.of(values), Spread.of(other)
    low, high = sorted((here.median, there.median))
    if high <= low * (1 + NOISE):
        verdict: Verdict = "no difference"
    elif min(here.count, there.count) < FEWEST and not _exact(values, other):
        verdict = "too few"
    elif here.p90 < there.p10:
        verdict = "lower"
    elif here.p10 > there.p90:
        verdict = "higher"
    else:
        verdict = "no difference"
    return Difference(
        verdict,
        _part(here.median, there.median),
        _part(here.p10, there.p90),
        _part(here.p90, there.p10),
    )


class Range(msgspec.Struct, frozen=True):
    """A figure, and how far it may be from that by what repetitions scatter."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Range:
        """From p10 to p90. Raises ValueError without values."""
        spread = Spread.of(values)
        return Range(spread.median, spread.p10, spread.p90)

    def times(self, factor: float) -> Range:
        return Range(self.median * factor, self.least * factor, self.most * factor)


def ratio(values: Sequence[float], other: Sequence[float]) -> Range:
    """Of two figures, with the ends of a Difference; inf: over zero. Raises ValueError without
    values."""
    here, there = Spread.of(values), Spread.of(other)
    return Range(
        _over(here.median, there.median), _over(here.p10, there.p90), _over(here.p90, there.p10)
    )


def middle(ranges: Sequence[Range]) -> Range:
    """Of several the median, and those of their ends. Raises ValueError without any."""
    if not ranges:
        raise ValueError("no ranges")
    return Range(
        statistics.median(each.median for each in ranges),
        statistics.median(each.least for each in ranges),
        statistics.median(each.most for each in ranges),
    )


def _decile(ordered: Sequence[float], number: int) -> float:
    """Between the two nearest values; never rounded beyond them, as statistics.quantiles() is."""
    below, tenths = divmod((len(ordered) - 1) * number, 10)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (tenths / 10)


def _part(value: float, other: float) -> float:
    return _over(value, other) - 1


def _over(value: float, other: float) -> float:
    if other:
        return value / other
    return math.inf if value else 1.0


def _exact(*samples: Sequence[float]) -> bool:
    """Repeated, and always the same: counts and virtual times."""
    return all(len(values) > 1 and min(values) == max(values) for values in samples)
