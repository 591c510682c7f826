"""What charts on a page have in common: how series look, entries of legends, ticks of an axis."""

from __future__ import annotations

from html import escape

from vramkit.report.axis import Scale, Tick
from vramkit.report.blocks import Tone

# A series has a colour and, for those who do not see it, a shape or a pattern.
COLOURS, SHAPES = 8, 7  # of charts.css; without a common divisor, so that pairs are many
FEW_TICKS = 4  # whose texts have room on a phone


def series_class(index: int) -> str:
    return f"k{index % COLOURS} m{index % SHAPES}"


def bar_key(index: int, name: str) -> str:
    """An entry of a legend: a sample and the name."""
    return _key(f'<i class="fill {series_class(index)}"></i>', name)


def line_key(index: int, name: str) -> str:
    look = series_class(index)
    return _key(f'<i class="stroke {look}"><i class="dot {look}"></i></i>', name)


def level_key(name: str, tone: Tone) -> str:
    return _key(f'<i class="level {tone}"></i>', name)


def _key(sample: str, name: str) -> str:
    return f'<span class="sample">{sample}<span>{escape(name)}</span></span>'


def odd_ticks(scale: Scale) -> list[tuple[Tick, str]]:
    """Ticks of a horizontal axis; those whose texts a narrow page leaves out have a class."""
    many = len(scale.ticks) > FEW_TICKS
    return [(tick, " odd" if many and at % 2 else "") for at, tick in enumerate(scale.ticks)]
