"""Axes of charts: from a value to a place along the axis, and where its ticks stand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vramkit.report.units import Unit, axis_unit

NICE = (1, 2, 5, 10)


@dataclass(frozen=True)
class Tick:
    value: float
    text: str


@dataclass(frozen=True)
class Scale:
    """From `low` to `high`, which differ; on a logarithmic scale both are above zero."""

    low: float
    high: float
    log: bool
    ticks: Sequence[Tick]

    def shows(self, value: float) -> bool:
        """Whether the value has a place: zero has none on a logarithmic scale."""
        return value > 0 or not self.log

    def share(self, value: float) -> float:
        """The value's place: 0 at `low`, 1 at `high`. Only for values that it shows."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def nice_step(length: float, most: int) -> float:
    """1, 2 or 5 times a power of ten: the smallest that divides the length into at most `most`."""
    if length <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(length / most))
    return next(power * factor for factor in NICE if length / (power * factor) <= most + 1e-9)


def linear_scale(
    values: Iterable[float], unit: Unit, most: int, *, from_zero: bool = True, room: float = 0.0
) -> Scale:
    """`room` is left free beyond the values, as a part of their range; `most` intervals."""
    known = [*values, *([0.0] if from_zero else [])] or [0.0]
    low, high = min(known), max(known)
    if low == high:  # nothing to spread out: the value stands at the foot, or in the middle
        margin = abs(low) / 10 or 1.0
        return Scale(
            low if low == 0 else low - margin, low + margin, False, _linear_ticks(low, low, unit, 1)
        )
    margin = (high - low) * room
    low, high = low if from_zero and low == 0 else low - margin, high + margin
    return Scale(low, high, False, _linear_ticks(low, high, unit, most))


def _linear_ticks(low: float, high: float, unit: Unit, most: int) -> list[Tick]:
    """Counted in one unit, so that the steps are round in it: 0.5 GiB, 1.0 GiB, 1.5 GiB."""
    size, name = axis_unit(max(abs(low), abs(high)), unit)
    if low == high:
        return [Tick(low, f"{low / size:,.3g}{name}" if low else "0")]
    step = nice_step((high - low) / size, most)
    if unit == "count":
        step = max(step, 1.0) if size == 1 and high - low >= 1 else step
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / size / step - 1e-9), math.floor(high / size / step + 1e-9)
    return [
        Tick(index * step * size, f"{index * step:,.{digits}f}{name}" if index else "0")
        for index in range(first, last + 1)
    ]


def log_scale(values: Iterable[float], unit: Unit, most: int) -> Scale:
    """Zeros and below are left out: they have no place on it. Begins below the least value."""
    known = [value for value in values if value > 0] or [1.0]
    base = 2.0 if unit == "bytes" else 10.0
    low, high = _rounded_down(min(known) / 1.1, base), max(known)
    if high < low * base:
        high = low * base
    return Scale(low, high, True, _log_ticks(low, high, unit, base, most))


def _rounded_down(value: float, base: float) -> float:
    power: float = base ** math.floor(math.log(value, base) + 1e-9)
    factors = NICE if base == 10 else (1,)
    return max(power * factor for factor in factors if power * factor <= value * (1 + 1e-9))


def _log_ticks(low: float, high: float, unit: Unit, base: float, most: int) -> list[Tick]:
    """Powers of the base, or every few of them; of ten also twice and five times, if there is room.

    Each is counted in its own unit: 100 ns, 1 µs, 10 µs.
    """
    first = math.ceil(math.log(low, base) - 1e-9)
    last = math.floor(math.log(high, base) + 1e-9)
    every = math.ceil((last - first) / most) or 1
    if base == 2:
        every = next((step for step in (1, 2, 5, 10, 20) if step >= every), every)
    start = -(-first // every) * every
    values: list[float] = [base**power for power in range(start, last + 1, every)]
    if base == 10 and (last - first + 1) * 3 <= most + 2:
        values = [
            base**power * factor for power in range(first - 1, last + 1) for factor in NICE[:3]
        ]
    return [
        _log_tick(value, unit) for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
    ]


def _log_tick(value: float, unit: Unit) -> Tick:
    size, name = axis_unit(value, unit)
    return Tick(value, f"{float(f'{value / size:.6g}'):,g}{name}")
