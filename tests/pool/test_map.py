"""The map of a snapshot: what its cells and bars say, and the page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from vramkit.pool import Snapshot
from vramkit.pool.map import document, map_block
from vramkit.pool.sums import by_state
from vramkit.report.blocks import Bars, MemoryMap, Table

from . import layouts
from .layouts import BASE, MIB


@pytest.fixture(scope="module")
def large() -> Snapshot:
    layout = layouts.large()
    live = [block["address"] for block in layout["blocks"] if block["state"] == "live"]
    stacks = {
        address: [f"/a/long/path/to/a/model/layer_{n % 90}.py:{n % 90} in forward"] * 20
        for n, address in enumerate(live)
    }
    return layouts.snapshot(layout, stacks)


def held(block: MemoryMap, state: str) -> int:
    return sum(row.nbytes.get(state, 0) for row in block.rows)  # type: ignore[call-overload]


@pytest.mark.parametrize("made", ["small", "large"])
def test_the_map_shows_every_byte_once(made: str, request: pytest.FixtureRequest) -> None:
    taken = (
        layouts.snapshot(layouts.small()) if made == "small" else request.getfixturevalue("large")
    )
    drawn, sums = map_block(taken), by_state(taken)
    for state in ("live", "cached", "waiting", "idle", "rest"):
        assert held(drawn, state) == getattr(sums, state), state
    for row in drawn.rows:
        assert sum(run.cells for run in row.runs) == drawn.cells


def test_an_extent_without_slabs_is_idle_and_the_end_of_a_slab_is_rest() -> None:
    kib64 = 65_536
    layout = layouts.small() | {
        "extents": [layouts.extent(BASE, [2 * MIB])],
        "slabs": [
            {"address": BASE + at * kib64, "bytes": 2 * kib64, "block_bytes": 3 * 8192, "count": 5}
            for at in (4, 6, 20)
        ],
        "blocks": [layouts.block(BASE + 6 * kib64, 3 * 8192, "live", 0, 1)],
    }
    taken = layouts.snapshot(layout)
    drawn, sums = map_block(taken), by_state(taken)
    assert (sums.live, sums.rest) == (3 * 8192, 6 * kib64 - 3 * 8192)
    assert sums.idle == 2 * MIB - 6 * kib64
    assert [held(drawn, state) for state in ("live", "rest", "idle")] == [
        sums.live,
        sums.rest,
        sums.idle,
    ]
    [row] = drawn.rows
    states = [run.state for run in row.runs for _ in range(run.cells)]  # a cell is 32 KiB
    idle = [index for index, state in enumerate(states) if state == "idle"]
    assert idle == [*range(8), *range(16, 40), *range(44, 64)]


def test_rows_are_32_mib_smaller_for_small_pools_and_larger_for_full_cards(
    large: Snapshot,
) -> None:
    def row_bytes(extents: list[int]) -> int:
        starts = [BASE + sum(extents[:index]) for index in range(len(extents))]
        layout = layouts.small() | {
            "extents": [
                layouts.extent(start, [size]) for start, size in zip(starts, extents, strict=True)
            ],
            "slabs": [],
            "blocks": [],
        }
        drawn = map_block(layouts.snapshot(layout))
        return drawn.cells * drawn.cell_bytes

    assert row_bytes([2 * MIB]) == 2 * MIB
    assert row_bytes([64 * MIB]) == 8 * MIB
    assert row_bytes([256 * MIB]) == row_bytes([1024 * MIB] * 5) == 32 * MIB
    assert row_bytes([1024 * MIB] * 6) == 64 * MIB
    assert len(map_block(large).rows) <= 160


def test_a_block_is_one_bar_with_its_story() -> None:
    taken = layouts.snapshot(layouts.small(), {BASE + 2 * MIB: ["/x/a.py:1 in f", "b.py:2 in g"]})
    slab, *block_rows = map_block(taken).rows[:4]
    for row in block_rows:
        [run] = row.runs
        assert (run.cells, run.used, run.stream) == (64, 8, 0)
        assert run.tip == (
            f"{BASE + 2 * MIB:#x}: 6 MiB in use, 5 MiB asked for, stream 9 (ended)\n"
            "stack 1: a.py:1 in f"
        )
    full, free, rest = slab.runs  # a cell is 32 KiB: four blocks each
    assert (full.cells, full.used) == (1, 8)
    assert "blocks of 8 KiB, 2 streams" in full.tip
    assert (free.cells, free.used, free.state) == (1, 0, "cached")
    assert "16 KiB cached, 8 KiB waiting, 8 KiB idle" in free.tip
    assert (rest.cells, rest.state) == (62, "rest")


def test_the_smallest_block_in_use_shows() -> None:
    layout = layouts.small()
    layout["blocks"] = [layouts.block(BASE + MIB, 256, "live", 0, 1)]
    [before, live, after] = map_block(layouts.snapshot(layout)).rows[0].runs
    assert (before.cells, live.cells, after.cells) == (32, 1, 31)
    assert (live.used, live.state) == (1, "rest")


def test_a_hole_between_addresses_is_left_out_and_marked() -> None:
    rows = map_block(layouts.snapshot(layouts.small())).rows
    assert [row.apart for row in rows] == [False] * 4 + [True, False, False]
    assert rows[4].address == BASE + 64 * MIB


def test_bars_say_what_they_leave_out(large: Snapshot) -> None:
    drawn = [
        block
        for section in document(large).sections
        for block in section.blocks
        if isinstance(block, Bars)
    ]
    classes, streams, stacks = drawn
    assert sum(sum(bar.nbytes.values()) for bar in classes.bars) == sum(
        block.bytes for block in large.blocks
    )
    assert len(streams.bars) == 20 and streams.caption == ""
    assert len(stacks.bars) == 40 and stacks.caption.startswith("50 more hold ")
    table = document(large).sections[-1].blocks[1]
    assert isinstance(table, Table) and len(table.rows) == 40
    assert all(row[1].count("\n") == 15 for row in table.rows)  # of twenty frames


class Page(HTMLParser):
    """Fails where tags do not nest; collects what a test looks for."""

    VOID = frozenset({"meta", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.titles: list[str] = []
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.titles += [value or "" for name, value in attrs if name == "title"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_the_page_has_a_table_beside_each_picture_and_fetches_nothing() -> None:
    text = layouts.snapshot(layouts.small()).to_html()
    page = Page(text)
    assert page.tags.count("figure") == page.tags.count("details") == 3
    assert 'role="img" aria-label="Memory by address: 6.03 MiB in use, 2.02 MiB cached' in text
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(|<link|<script|<img", text)


def test_text_of_stacks_is_escaped() -> None:
    nasty = """a.py:1 in "<script>alert(1)</script>" & 'y'"""
    taken = layouts.snapshot(layouts.small(), {BASE + 2 * MIB: [nasty, "z.py:1 in <lambda>"]})
    text = taken.to_html()
    page = Page(text)
    assert "script" not in page.tags and "<lambda>" not in text
    assert any(title.endswith(f"\nstack 1: {nasty}") for title in page.titles)
    assert f"{nasty}\nz.py:1 in <lambda>" in page.cells


def test_the_page_of_a_full_card_stays_small(large: Snapshot) -> None:
    assert len(large.blocks) >= 50_000 and by_state(large).total > 140e9
    assert len(large.to_html().encode()) < 3_000_000
