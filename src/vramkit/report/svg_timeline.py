"""A timeline as inline SVG: lanes, bars with their names where these fit, a time axis."""

from __future__ import annotations

import math
from html import escape

from vramkit.report.blocks import Lane, Span, Timeline
from vramkit.report.units import time_text

WIDTH = 900
LABEL = 118
RIGHT = 14
LANE_HEIGHT = 34
BAR_HEIGHT = 24
AXIS_HEIGHT = 26
CHARACTER = 6.6  # width of one character of a bar's name, in SVG units


def timeline_svg(timeline: Timeline) -> str:
    """The drawing scales with the page; its colours are the page's."""
    bottom = LANE_HEIGHT * len(timeline.lanes)
    parts = [
        f'<svg class="timeline" viewBox="0 0 {WIDTH} {bottom + AXIS_HEIGHT}" role="img" '
        f'aria-label="{escape(_spoken(timeline), quote=True)}">'
    ]
    parts += _grid(timeline.scale, bottom)
    for index, lane in enumerate(timeline.lanes):
        parts += _lane(lane, index * LANE_HEIGHT, timeline.scale)
    parts.append("</svg>")
    return "".join(parts)


def _spoken(timeline: Timeline) -> str:
    ends = [span.end for lane in timeline.lanes for span in lane.spans]
    return f"{timeline.title}: {len(ends)} operations in {time_text(max(ends, default=0.0))}"


def _x(seconds: float, scale: float) -> float:
    return LABEL + (WIDTH - LABEL - RIGHT) * (seconds / scale if scale > 0 else 0.0)


def _tick_step(scale: float) -> float:
    """1, 2 or 5 times a power of ten, for four to nine ticks."""
    if scale <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(scale / 4))
    return next(power * factor for factor in (1, 2, 5, 10) if scale / (power * factor) <= 9)


def _grid(scale: float, bottom: int) -> list[str]:
    step = _tick_step(scale)
    parts = []
    for index in range(int(scale / step + 1e-9) + 1):
        x = _x(index * step, scale)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom + 4}"/>')
        anchor = "middle" if x < WIDTH - 30 else "end"
        label = time_text(index * step) if index else "0"
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{bottom + 19}" text-anchor="{anchor}">'
            f"{label}</text>"
        )
    return parts


def _lane(lane: Lane, top: int, scale: float) -> list[str]:
    middle = top + LANE_HEIGHT / 2
    parts = [f'<text class="lane" x="0" y="{middle + 4:.1f}">{escape(lane.name)}</text>']
    spans = sorted(lane.spans, key=lambda span: span.start)
    parts += [_bar(span, top, scale) for span in spans]
    return parts


def _bar(span: Span, top: int, scale: float) -> str:
    """Names that do not fit are left to the tooltip."""
    x = _x(span.start, scale)
    width = max(_x(span.end, scale) - x - 1, 1.0)
    y = top + (LANE_HEIGHT - BAR_HEIGHT) / 2
    times = f"{time_text(span.start)} to {time_text(span.end)}"
    tip = f"{span.name}: {time_text(span.end - span.start)} ({times})"
    bar = (
        f'<g class="bar {span.kind}"><title>{escape(tip)}</title>'
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{BAR_HEIGHT}" rx="3"/>'
    )
    if len(span.name) * CHARACTER + 10 <= width:
        bar += (
            f'<text x="{x + width / 2:.1f}" y="{top + LANE_HEIGHT / 2 + 4:.1f}" '
            f'text-anchor="middle">{escape(span.name)}</text>'
        )
    return bar + "</g>"
