"""Names in a report come from programs and files: none of them becomes markup of the page."""

from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from vramkit.report import blocks
from vramkit.report.html import page

NASTY = """</title></style><script>alert(1)</script><b onclick="x" title='y'>"'` onload=`z`"""
# Words that the page's style knows; they come from us alone.
CHOSEN = {"tone", "kind", "state", "language", "unit", "scale", "better"}

DOCUMENTS = {
    "text": blocks.Text("x"),
    "callout": blocks.Callout("good", "x", "x"),
    "figures": blocks.Figures([blocks.Figure("x", "x")]),
    "table": blocks.Table(["x", "x"], [["x", "x"]], "x", [1]),
    "python": blocks.Code("x", "x", marked={1: "x"}),
    "other code": blocks.Code("x", "x", language="text", marked={1: "x"}),
    "timeline": blocks.Timeline(
        "x", [blocks.Lane("x", [blocks.Span("x", 0.0, 1.0, "kernel")])], 1.0, "x"
    ),
    "bars": blocks.Bars("x", "x", [blocks.Bar("x", {"live": 1, "idle": 2})], "x"),
    "bar chart": blocks.BarChart(
        "x",
        [
            blocks.ValueBar("x", 1.0, 0.5, 2.0, "x", "x", "good", "x"),
            blocks.ValueBar("x", None, series="y", why="x"),
        ],
        "ms",
        "x",
        "lower",
        caption="x",
    ),
    "line chart": blocks.LineChart(
        "x",
        [blocks.Series("x", [(0.0, 1.0), (1.0, 2.0)], [(0.0, 2.0), (1.0, 3.0)])],
        blocks.Axis("x", "s"),
        blocks.Axis("x", "bytes"),
        [blocks.Level("x", 1.0, "bad")],
        "x",
    ),
    "memory map": blocks.MemoryMap(
        "x",
        4,
        1,
        [blocks.MapRow(4096, [blocks.Run(4, 8, "live", "x", 0)], {"live": 3, "idle": 1})],
        ["x", "x"],
        "x",
    ),
    "conflict": blocks.Conflict("x", "x", [("x", "x"), ("x", "x")], "x"),
}


def filled(value: Any, text: str, name: str = "") -> Any:
    """The same structure with every text of it replaced."""
    if isinstance(value, str):
        return value if name in CHOSEN else text
    if isinstance(value, list | tuple):
        return type(value)(filled(each, text) for each in value)
    if isinstance(value, dict):
        return {key: filled(each, text) for key, each in value.items()}
    if isinstance(value, msgspec.Struct):
        fields = value.__struct_fields__
        return type(value)(*(filled(getattr(value, each), text, each) for each in fields))
    return value


class Markup(HTMLParser):
    """The page's elements with the names of their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[tuple[str, tuple[str, ...]]] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add((tag, tuple(name for name, _ in attrs)))


def markup(text: str, block: blocks.Block) -> set[tuple[str, tuple[str, ...]]]:
    section = blocks.Section("x", [block])
    document = blocks.Document("x", "x", [("x", "x")], [section], "x")
    parser = Markup()
    parser.feed(page(filled(document, text)))
    return parser.elements


@pytest.mark.parametrize("block", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_no_text_of_a_report_becomes_markup(block: blocks.Block) -> None:
    # Code in backquotes and the colours of code are the page's own.
    own = {("code", ()), ("span", ("class",))}
    assert markup(NASTY, block) <= markup("plain", block) | own
