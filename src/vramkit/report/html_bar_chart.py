"""A bar chart as HTML: a row a bar, its label before it and its figures after it.

Places are shares of the width, texts keep their size: it reads on a narrow screen as well.
"""

from __future__ import annotations

from html import escape

from vramkit.report.axis import Scale
from vramkit.report.blocks import JUDGED, SIGNS, BarChart, ValueBar
from vramkit.report.chart_scales import bar_scale, series_names
from vramkit.report.chart_table import bar_table, bar_text, spread_text
from vramkit.report.html_chart_parts import bar_key, odd_ticks, series_class
from vramkit.report.html_table import hidden_table_html
from vramkit.report.html_text import caption, inline
from vramkit.report.units import value_text

TICKS = 6  # intervals of an axis, at most
BETTER = {"lower": "← lower is better", "higher": "higher is better →", "neither": ""}


def bar_chart_html(block: BarChart) -> str:
    """Drawn for the eye; the label says it in short, and the table below in full."""
    scale = bar_scale(block, TICKS)
    names = series_names(block)
    keys = "".join(bar_key(index, name) for index, name in enumerate(names) if len(names) > 1)
    better = f'<span class="better">{BETTER[block.better]}</span>' if BETTER[block.better] else ""
    rows = "".join(
        _row(block, bar, scale, names, before)
        for before, bar in zip([None, *block.bars], block.bars, strict=False)
    )
    drawing = "<p>No values.</p>"
    if block.bars:
        several = " several" if len(names) > 1 else ""
        drawing = (
            f'<div class="barchart {block.scale}{several}" role="img" '
            f'aria-label="{escape(_spoken(block))}">{_rules(scale)}{rows}</div>'
        )
    table = hidden_table_html(bar_table(block)) if block.bars else ""
    return (
        f'<figure class="chart"><figcaption>{inline(block.title)}'
        f'<span class="legend">{keys}{better}</span></figcaption>'
        f"{drawing}{caption(block.caption)}{table}</figure>"
    )


def _spoken(block: BarChart) -> str:
    drawn = [bar for bar in block.bars if bar.value is not None]
    text = f"{block.title}: {len(block.bars)} bars"
    if not drawn:
        return f"{text}, none with a value"
    ends = (
        min(drawn, key=lambda bar: bar.value or 0.0),
        max(drawn, key=lambda bar: bar.value or 0.0),
    )
    least, most = (f"{bar_text(bar, block.unit)} ({_full_name(bar)})" for bar in ends)
    return f"{text}, from {least} to {most}"


def _full_name(bar: ValueBar) -> str:
    return ", ".join(filter(None, (bar.group, bar.label, bar.series)))


def _rules(scale: Scale | None) -> str:
    if scale is None:
        return ""
    lines = []
    for tick, odd in odd_ticks(scale):
        share = 100 * scale.share(tick.value)
        side = " first" if share < 4 else " last" if share > 96 else ""
        lines.append(
            f'<span class="rule{side}{odd}" style="left:{share:.3f}%">'
            f"<i>{escape(tick.text)}</i></span>"
        )
    return f'<div class="rules">{"".join(lines)}</div>'


def _row(
    block: BarChart, bar: ValueBar, scale: Scale | None, names: list[str], before: ValueBar | None
) -> str:
    group = before is None or before.group != bar.group
    new = group or before is None or before.label != bar.label or len(names) == 1
    head = f'<b class="group">{escape(bar.group)}</b>' if group and bar.group else ""
    tone = f" {bar.tone}" if bar.tone != "plain" else ""
    sign = f'<i class="sign">{SIGNS[bar.tone]}</i> ' if bar.tone in JUDGED else ""
    label = escape(bar.label) if new else ""
    series = f"<small>{escape(bar.series)}</small>" if bar.series and len(names) > 1 else ""
    first = " new" if new else ""
    value = "" if bar.value is None else value_text(bar.value, block.unit)
    note = f'<em class="why">{escape(bar.why)}</em>' if bar.value is not None and bar.why else ""
    return (
        f'{head}<span class="label{tone}{first}">{sign}<span>{label}</span>{series}</span>'
        f'<span class="plot{first}">{_drawn(block, bar, scale, names)}</span>'
        f'<span class="value{tone}{first}">{escape(value)}</span>'
        f'<span class="spread{first}">{escape(spread_text(bar, block.unit))}{note}</span>'
    )


def _drawn(block: BarChart, bar: ValueBar, scale: Scale | None, names: list[str]) -> str:
    if bar.value is None or scale is None:
        return f'<em class="why">{escape(bar_text(bar, block.unit))}</em>'
    # One series has the tone's colour, several have their own.
    look = series_class(names.index(bar.series)) if len(names) > 1 else f"one {bar.tone}"
    tip = f"{_full_name(bar)}: {bar_text(bar, block.unit)}"
    spread = spread_text(bar, block.unit)
    tip = escape(f"{tip} ({spread})" if spread else tip)
    if not scale.shows(bar.value):
        return ""
    share = 100 * scale.share(bar.value)
    fill = f'<i class="fill {look}" style="width:{share:.3f}%" title="{tip}"></i>'
    dot = f'<i class="dot {look}" style="left:{share:.3f}%" title="{tip}"></i>' if scale.log else ""
    return fill + _whisker(bar, scale) + dot


def _whisker(bar: ValueBar, scale: Scale) -> str:
    if bar.low is None or bar.high is None or bar.low == bar.high or not scale.shows(bar.high):
        return ""
    left = 100 * scale.share(bar.low) if scale.shows(bar.low) else 0.0
    width = 100 * scale.share(bar.high) - left
    return f'<i class="whisker" style="left:{left:.3f}%;width:{width:.3f}%"></i>'
