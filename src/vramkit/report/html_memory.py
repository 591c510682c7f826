"""Memory maps and bars of bytes as HTML: cells and bars are elements, their patterns are CSS."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from vramkit.report.blocks import MEMORY_NAMES, Bars, MapRow, MemoryMap, MemoryState, Run, Table
from vramkit.report.html_table import hidden_table_html
from vramkit.report.html_text import caption
from vramkit.report.units import bytes_text

FILTERED_STREAMS = 8  # memory.css has a rule for each


def bars_html(block: Bars) -> str:
    """Drawn for the eye; the table below says the same."""
    longest = max((sum(bar.nbytes.values()) for bar in block.bars), default=0) or 1
    states = _present(bar.nbytes for bar in block.bars)
    rows = []
    for bar in block.bars:
        total = sum(bar.nbytes.values())
        parts = "".join(
            f'<i class="{state}" style="width:{100 * bar.nbytes[state] / longest:.3g}%" '
            f'title="{escape(bar.label)}: {bytes_text(bar.nbytes[state])} {MEMORY_NAMES[state]}">'
            "</i>"
            for state in states
            if bar.nbytes.get(state)
        )
        rows.append(
            f'<span class="label">{escape(bar.label)}</span><span class="track">{parts}</span>'
            f'<span class="sum">{bytes_text(total)}</span>'
        )
    table = _table(block.first, states, [(bar.label, bar.nbytes) for bar in block.bars])
    return (
        f'<figure class="chart"><figcaption>{escape(block.title)}{_legend(states)}</figcaption>'
        f'<div class="bars" aria-hidden="true">{"".join(rows)}</div>'
        f"{caption(block.caption)}{table}</figure>"
    )


def memory_map_html(block: MemoryMap) -> str:
    states = _present(row.nbytes for row in block.rows)
    whole = {state: sum(row.nbytes.get(state, 0) for row in block.rows) for state in states}
    spoken = ", ".join(f"{bytes_text(whole[state])} {MEMORY_NAMES[state]}" for state in states)
    rows = "".join(_row(row) for row in block.rows)
    table = _table(
        f"{bytes_text(block.cells * block.cell_bytes)} from",
        states,
        [(f"`{row.address:#x}`", row.nbytes) for row in block.rows],
    )
    many = " many" if len(block.rows) > 48 else ""
    return (
        f'<figure class="chart memory"><figcaption>{escape(block.title)}{_legend(states)}'
        f"</figcaption>{_filter(block, states)}"
        f'<div class="map{many}" style="--cells:{block.cells}" role="img" '
        f'aria-label="{escape(block.title)}: {spoken}">{rows}</div>'
        f"{caption(block.caption)}{table}</figure>"
    )


def _present(sums: Iterable[dict[MemoryState, int]]) -> list[MemoryState]:
    held = {state for row in sums for state, nbytes in row.items() if nbytes}
    return [state for state in MEMORY_NAMES if state in held]


def _legend(states: list[MemoryState]) -> str:
    keys = "".join(
        f'<span class="state"><i class="{state}"></i>{MEMORY_NAMES[state]}</span>'
        for state in states
    )
    return f'<span class="legend">{keys}</span>'


def _row(row: MapRow) -> str:
    apart = " apart" if row.apart else ""
    runs = "".join(_run(run) for run in row.runs)
    return f'<b class="at{apart}">{row.address:#x}</b><div class="row{apart}">{runs}</div>'


def _run(run: Run) -> str:
    """Short, as there are thousands: cells without memory of the pool have no text."""
    names: list[str] = [run.state] if run.used < 8 else []
    names += [f"u{run.used}"] if run.used else []
    names += [f"s{run.stream}"] if run.stream >= 0 else []
    span = f' style="--n:{run.cells}"' if run.cells > 1 else ""
    tip = f' title="{escape(run.tip)}"' if run.tip else ""
    return f'<i class="{" ".join(names)}"{span}{tip}></i>'


def _filter(block: MemoryMap, states: list[MemoryState]) -> str:
    """Radio buttons that CSS reads. A form of its own keeps them apart from other maps'."""
    choices = [("all", "everything")]
    choices += [(f"only-{state}", MEMORY_NAMES[state]) for state in states if state != "rest"]
    if len(block.streams) > 1:
        named = block.streams[:FILTERED_STREAMS]
        choices += [(f"only-s{number}", name) for number, name in enumerate(named)]
    if len(choices) < 3:
        return ""
    buttons = "".join(
        f'<label><input type="radio" name="show" class="{name}"'
        f"{' checked' if name == 'all' else ''}>{escape(text)}</label>"
        for name, text in choices
    )
    return f'<form class="filter" aria-label="Show in the map">{buttons}</form>'


def _table(
    first: str, states: list[MemoryState], rows: list[tuple[str, dict[MemoryState, int]]]
) -> str:
    columns = [first, *(MEMORY_NAMES[state] for state in states), "together"]
    body = [
        [
            label,
            *(_cell(nbytes.get(state, 0)) for state in states),
            bytes_text(sum(nbytes.values())),
        ]
        for label, nbytes in rows
    ]
    return hidden_table_html(Table(columns, body, numeric=list(range(1, len(columns)))))


def _cell(nbytes: int) -> str:
    return bytes_text(nbytes) if nbytes else "–"  # noqa: RUF001
