"""Charts in the terminal: within the width, to scale, and told apart without colour."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from vramkit.cli.console import PLAIN
from vramkit.report.blocks import Axis, BarChart, LineChart, Series, ValueBar
from vramkit.report.terminal import print_block
from vramkit.report.terminal_bar_chart import bar_chart_lines
from vramkit.report.terminal_line_chart import line_chart_lines

from .every_block import bar_charts, line_charts


def plain(lines: list[object]) -> list[str]:
    return [line.plain for line in lines]  # type: ignore[attr-defined]


def test_bars_are_to_scale_and_shaded_where_repetitions_scatter() -> None:
    bars = [
        ValueBar("pool", 20, 10, 30),
        ValueBar("driver", 40),
        ValueBar("arena", None, why="timed out"),
    ]
    block = BarChart("Time", bars, "ms", better="lower")
    # 6 for labels, 4 between columns, 28 for figures.
    title, pool, driver, arena, axis, better = plain(bar_chart_lines(block, 40 + 38))
    assert pool == f"pool    {'█' * 10}{'▓' * 10}{'░' * 10}{' ' * 10}  20.0 ms (10.0 ms to 30.0 ms)"
    assert driver == f"driver  {'█' * 40}  40.0 ms"
    assert arena == "arena   timed out"
    assert axis.split() == ["0", "10", "ms", "20", "ms", "30", "ms"]
    assert axis.index("20 ms") == 8 + 20
    assert (title, better) == ("Time", "lower is better")


def test_a_narrow_terminal_keeps_bars_and_values() -> None:
    bars = [ValueBar("a label that is rather long", 40, 10, 40), ValueBar("b", 20)]
    _, first, second, _ = plain(bar_chart_lines(BarChart("t", bars, "ms"), 40))
    assert first.startswith("a label that…  ") and first.endswith("  40.0 ms")
    assert second.count("█") == 8 and second.endswith("  20.0 ms")


def test_on_a_logarithmic_scale_a_value_is_a_mark() -> None:
    bars = [ValueBar(str(value), value) for value in (3, 30, 300)]
    rows = plain(bar_chart_lines(BarChart("t", bars, "ms", scale="log"), 80))[1:4]
    places = [row.index("●") for row in rows]
    assert abs((places[2] - places[1]) - (places[1] - places[0])) <= 1


def test_several_lines_without_colour_are_letters() -> None:
    up = Series("up", [(0, 0.0), (10, 12.0)])
    down = Series("down", [(0, 12.0), (10, 0.0)], step=True)
    block = LineChart("t", [up, down], Axis("x"), Axis("y", "ms"))
    rows = plain(line_chart_lines(block, 60, colour=False))
    drawing = rows[2:14]
    assert drawing[-1].split("┤")[1].startswith("a") and drawing[-1].endswith("b")
    assert "b" * 50 in drawing[0]  # the step is held until the last point
    assert rows[-1] == "a up   b down"


def test_one_line_is_drawn_in_dots() -> None:
    block = LineChart("t", [Series("a", [(0, 0.0), (1, 0.0)])], Axis(""), Axis("", "ms"))
    rows = plain(line_chart_lines(block, 40, colour=False))
    assert rows[12] == f"0 ┤{'⣀' * 37}"


@pytest.mark.parametrize("width", [50, 80, 120])
@pytest.mark.parametrize("colour", [True, False])
def test_every_chart_fits(width: int, colour: bool) -> None:
    for block in [*bar_charts(), *line_charts()]:
        if isinstance(block, BarChart):
            rows = plain(bar_chart_lines(block, width))
        else:
            assert isinstance(block, LineChart)
            rows = plain(line_chart_lines(block, width, colour=colour))
        # Titles and captions are whole: the console wraps them.
        long = [row for row in rows if len(row) > width and row not in (block.title, block.caption)]
        assert long == []


def test_an_ascii_terminal_has_a_sign_for_all_that_is_drawn() -> None:
    file = io.StringIO()
    console = Console(file=file, width=100)
    for block in [*bar_charts(), *line_charts()]:
        print_block(console, block)
    assert {sign for sign in file.getvalue().translate(PLAIN) if not sign.isascii()} == set()
