"""Reports: units, the timeline in characters and as SVG, and the page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from vramkit.report.blocks import (
    Callout,
    Code,
    Conflict,
    Document,
    Figure,
    Figures,
    Lane,
    Section,
    Span,
    Table,
    Text,
    Timeline,
)
from vramkit.report.highlight import highlighted_lines
from vramkit.report.html import page
from vramkit.report.html_timeline import timeline_html
from vramkit.report.terminal_timeline import timeline_lines
from vramkit.report.units import bytes_text, rate_text, time_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1, "1 B"), (1536, "1.50 KiB"), (2 << 20, "2 MiB"), (140 << 30, "140 GiB")],
)
def test_bytes_are_binary_units(nbytes: int, text: str) -> None:
    assert bytes_text(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ns"),
        (1.3e-7, "130 ns"),
        (9.999e-7, "1.00 µs"),
        (2.7e-5, "27.0 µs"),
        (0.1234, "123 ms"),
        (2, "2.00 s"),
    ],
)
def test_times_have_three_digits_and_a_unit(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_rates_are_decimal_units() -> None:
    assert rate_text(55.4e9) == "55.4 GB/s"


OVERLAP = Timeline(
    "two streams",
    [
        Lane("copies", [Span("copy 1", 0, 2, "copy_in"), Span("copy 2", 2, 4, "copy_in")]),
        Lane("compute", [Span("compute 1", 2, 4, "kernel"), Span("compute 2", 4, 6, "kernel")]),
    ],
    scale=8.0,
)


def rows(timeline: Timeline, columns: int, *, colour: bool) -> list[str]:
    lines = timeline_lines(timeline, columns + 12, colour=colour)
    return [line.plain[12:] for line in lines[1:-1]]


def test_a_timeline_in_characters_is_to_scale() -> None:
    copies, compute = rows(OVERLAP, 80, colour=False)
    assert copies == "█" * 20 + "▒" * 20
    assert compute == " " * 20 + "█" * 20 + "▒" * 20


def test_an_edge_within_a_column_is_drawn_in_eighths() -> None:
    timeline = Timeline("t", [Lane("a", [Span("x", 0, 1.05, "kernel")])], scale=8.0)
    [row] = rows(timeline, 80, colour=True)
    assert row.rstrip() == "█" * 10 + "▌"


def test_the_shortest_span_leaves_a_mark() -> None:
    timeline = Timeline("t", [Lane("a", [Span("x", 7.9999, 8.0)])], scale=8.0)
    [row] = rows(timeline, 80, colour=False)
    assert row == " " * 79 + "█"


def test_no_line_is_wider_than_asked() -> None:
    assert max(len(line.plain) for line in timeline_lines(OVERLAP, 60)) <= 60


def bars(timeline: Timeline) -> list[tuple[float, float]]:
    """Where each bar begins and how wide it is, in percent of the drawing."""
    places = re.findall(
        r'class="bar [^"]+" style="left:([\d.]+)%;width:([\d.]+)%', timeline_html(timeline)
    )
    return [(float(left), float(width)) for left, width in places]


def test_bars_of_the_drawing_are_to_scale() -> None:
    assert bars(OVERLAP) == [(0, 25), (25, 25), (25, 25), (50, 25)]


@pytest.mark.parametrize(
    ("scale", "place", "side"), [(8.0, "75.000", " before"), (20.0, "30.000", "")]
)
def test_the_drawing_says_where_the_last_work_ends(scale: float, place: str, side: str) -> None:
    """On any screen: a place is a share of the width, and the text stands where there is room."""
    drawing = timeline_html(Timeline(OVERLAP.title, OVERLAP.lanes, scale))
    assert f'<span class="end{side}" style="left:{place}%"><i>ends at 6.00 s</i>' in drawing
    assert 'aria-label="two streams: 4 operations, the last ends at 6.00 s"' in drawing


def test_a_drawing_has_no_least_width() -> None:
    """On a narrow screen the end of a drawing that must be scrolled to is not seen."""
    text = page(DOCUMENT)
    rules = re.findall(r"([^{}]+)\{([^{}]*min-width[^{}]*)\}", text)
    assert not [rule for rule, _ in rules if re.search(r"timeline|lane|spans", rule)]


def test_highlighting_keeps_the_text_and_marks_strings_over_lines() -> None:
    text = 'def f():\n    """One\n    two."""\n    return 1 < 2  # why\n'
    lines = highlighted_lines(text, "python")
    plain = [
        re.sub(r"<[^>]+>", "", line).replace("&lt;", "<").replace("&quot;", '"') for line in lines
    ]
    assert "\n".join(plain) + "\n" == text
    assert '<span class="keyword">def</span>' in lines[0]
    assert lines[2].startswith('<span class="string">')
    assert '<span class="comment"># why</span>' in lines[3]


DOCUMENT = Document(
    title="A <title>",
    summary="Summary with `code` & more",
    facts=[("Card", "a <card>")],
    sections=[
        Section(
            "One",
            [
                Text("a < b"),
                Callout("good", "fine"),
                Figures([Figure("1 ms", "time")]),
                Table(["x", "y"], [["1", "2"]], "t", [1]),
                Code("c", "print(1)\n", first_line=7, marked={7: "here"}),
                OVERLAP,
                Conflict("Race", "two", [("`a` writes", "x.py:1"), ("`b` reads", "")], "an event"),
            ],
        )
    ],
    simulated="h200",
)


class Balance(HTMLParser):
    """Fails where tags do not nest."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_escaped_and_says_simulated() -> None:
    text = page(DOCUMENT)
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    assert "A &lt;title&gt;" in text and "a &lt;card&gt;" in text and "a &lt; b" in text
    assert "simulated · h200" in text
    assert "<code>code</code> &amp; more" in text
    assert "counter-reset: line 6" in text


def test_the_page_fetches_nothing() -> None:
    text = page(DOCUMENT)
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(|<link|<script[^>]+src", text)


def test_rows_of_words_have_the_names_of_their_columns_for_a_phone() -> None:
    words = page(Document("t", "", [], [Section("s", [Table(["a", "", "b<"], [["1", "2", "3"]])])]))
    assert '<table class="prose">' in words
    assert '<td>1</td><td>2</td><td data-column="b&lt;">3</td>' in words
    for other in (
        Table(["a", "b"], [["1", "2"]]),
        Table(["a", "b", "c"], [["1", "2", "3"]], "", [2]),
    ):
        assert "data-column=" not in page(Document("t", "", [], [Section("s", [other])]))
