"""Figures of the lab as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from vramkit.lab.result import Quantity
from vramkit.lab.samples import Spread
from vramkit.report import units


def value_text(quantity: Quantity, value: float) -> str:
    return units.value_text(value, quantity.unit)


def spread_text(quantity: Quantity, values: Sequence[float]) -> str:
    """The median and, where repetitions differ, half the way from p10 to p90: "1.23 ms ± 4.0 %"."""
    spread = Spread.of(values)
    text = value_text(quantity, spread.median)
    percent = spread.relative * 100
    if percent == 0:
        return text
    return f"{text} ± {percent:.{0 if percent >= 9.95 else 1}f} %"
