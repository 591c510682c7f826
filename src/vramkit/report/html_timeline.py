"""A timeline as HTML: lanes with bars, a time axis, a line where the last work ends.

Places are shares of the width, texts keep their size: it reads on a narrow screen as well.
"""

from __future__ import annotations

from html import escape

from vramkit.report.axis import nice_step
from vramkit.report.blocks import Lane, Span, Timeline
from vramkit.report.html_text import caption, inline
from vramkit.report.units import time_text

LEGEND = {
    "copy_in": "host to device",
    "copy_out": "device to host",
    "kernel": "kernel",
    "other": "other work",
}
MOST_TICKS = 9


def timeline_html(timeline: Timeline) -> str:
    kinds = {span.kind for lane in timeline.lanes for span in lane.spans}
    legend = "".join(
        f'<span class="key {kind}">{text}</span>' for kind, text in LEGEND.items() if kind in kinds
    )
    ends = [span.end for lane in timeline.lanes for span in lane.spans]
    end = max(ends, default=0.0)
    spoken = f"{timeline.title}: {len(ends)} operations, the last ends at {time_text(end)}"
    lanes = "".join(_lane(lane, timeline.scale) for lane in timeline.lanes)
    return (
        f'<figure class="chart"><figcaption>{inline(timeline.title)}'
        f'<span class="legend">{legend}</span></figcaption>'
        f'<div class="timeline" role="img" aria-label="{escape(spoken)}">'
        f"{_grid(timeline.scale)}{lanes}{_end(end, timeline.scale)}</div>"
        f"{caption(timeline.caption)}</figure>"
    )


def _share(seconds: float, scale: float) -> float:
    """Percent of the width."""
    return 100 * seconds / scale if scale > 0 else 0.0


def _grid(scale: float) -> str:
    """The style sheet moves the text of a tick at the edge inwards where the page is narrow."""
    step = nice_step(scale, MOST_TICKS)
    ticks = []
    for index in range(int(scale / step + 1e-9) + 1):
        share, text = _share(index * step, scale), time_text(index * step) if index else "0"
        edge = " last" if share > 96 else ""
        ticks.append(f'<span class="tick{edge}" style="left:{share:.3f}%"><i>{text}</i></span>')
    return "".join(ticks)


def _lane(lane: Lane, scale: float) -> str:
    spans = sorted(lane.spans, key=lambda span: span.start)
    bars = "".join(_bar(span, scale) for span in spans)
    return f'<div class="lane"><b>{escape(lane.name)}</b><div class="spans">{bars}</div></div>'


def _bar(span: Span, scale: float) -> str:
    """The style sheet leaves a name out where the bar is too short for it."""
    times = f"{time_text(span.start)} to {time_text(span.end)}"
    tip = f"{span.name}: {time_text(span.end - span.start)} ({times})"
    left, width = _share(span.start, scale), _share(span.end - span.start, scale)
    return (
        f'<div class="bar {span.kind}" style="left:{left:.3f}%;width:{width:.3f}%" '
        f'title="{escape(tip)}"><span>{escape(span.name)}</span></div>'
    )


def _end(end: float, scale: float) -> str:
    """The text stands on the side of the line that has room."""
    share = _share(end, scale)
    side = " before" if share > 60 else ""
    return (
        f'<span class="end{side}" style="left:{share:.3f}%"><i>ends at {time_text(end)}</i></span>'
    )
