"""Figures of the lab as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from vramkit.lab.result import Quantity
from vramkit.lab.samples import Spread
from vramkit.report.units import value_text


def spread_text(quantity: Quantity, values: Sequence[float]) -> str:
    """The median and, where repetitions differ, half the way from p10 to p90: "1.23 ms ± 4 %"."""
    spread = Spread.of(values)
    text = value_text(spread.median, quantity.unit)
    if spread.p10 == spread.p90:
        return text
    return f"{text} ± {spread.relative * 100:.2g} %"
