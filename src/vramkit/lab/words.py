"""Figures of the lab as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from vramkit.lab.result import Quantity
from vramkit.lab.samples import Spread
from vramkit.report.units import bytes_text, rate_text, time_text

SECONDS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def value_text(quantity: Quantity, value: float) -> str:
    """With its unit: "1.23 ms"."""
    match quantity.unit:
        case "ms" | "us" | "ns":
            return time_text(value * SECONDS[quantity.unit])
        case "bytes":
            return bytes_text(value)
        case "bytes/s":
            return rate_text(value)
        case "count":
            return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
        case "ratio":
            return f"{value:.3g}"


def spread_text(quantity: Quantity, values: Sequence[float]) -> str:
    """The median and, where repetitions differ, half the way from p10 to p90: "1.23 ms ± 4 %"."""
    spread = Spread.of(values)
    text = value_text(quantity, spread.median)
    if spread.p10 == spread.p90:
        return text
    return f"{text} ± {spread.relative * 100:.2g} %"
