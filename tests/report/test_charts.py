"""Charts on the page: to scale, named, with what is missing, and as a table."""

from __future__ import annotations

import re

import pytest

from vramkit.report.blocks import Axis, BarChart, Level, LineChart, Series, ValueBar
from vramkit.report.chart_table import bar_table, line_table
from vramkit.report.html_bar_chart import bar_chart_html
from vramkit.report.html_line_chart import apart, line_chart_html

BARS = BarChart(
    "Time",
    [
        ValueBar("pool", 20, 10, 30, tone="note"),
        ValueBar("driver", 40),
        ValueBar("arena", None, why="out of memory"),
    ],
    "ms",
    "allocator",
    "lower",
)


def shares(html: str, name: str) -> list[tuple[str, float]]:
    """Left edges, tops or widths of the elements of a class, in percent."""
    found = re.findall(rf'class="{name}[^"]*" style="([^"]+)"', html)
    return [
        (key, float(value))
        for style in found
        for key, value in re.findall(r"(\w+):([\d.]+)%", style)
    ]


def test_bars_and_spreads_are_to_scale() -> None:
    html = bar_chart_html(BARS)
    assert shares(html, "fill") == [("width", 50), ("width", 100)]
    assert shares(html, "whisker") == [("left", 25), ("width", 50)]
    assert [left for _, left in shares(html, "rule")] == [0, 25, 50, 75, 100]


def test_a_bar_without_a_value_says_why() -> None:
    assert '<em class="why">out of memory</em>' in bar_chart_html(BARS)
    assert "not measured" in bar_chart_html(BarChart("t", [ValueBar("a", None)], "ms"))


def test_bars_are_described_for_those_who_do_not_see_them() -> None:
    html = bar_chart_html(BARS)
    assert 'aria-label="Time: 3 bars, from 20.0 ms (pool) to 40.0 ms (driver)"' in html
    table = bar_table(BARS)
    assert table.columns == ["allocator", "value", "spread"]
    assert table.rows[0] == ["pool", "20.0 ms", "10.0 ms to 30.0 ms"]
    assert table.rows[2] == ["arena", "out of memory", ""]
    assert table.numeric == [1, 2]


def test_on_a_logarithmic_scale_equal_ratios_are_equal_distances() -> None:
    bars = [ValueBar(str(value), value) for value in (3, 30, 300)]
    html = bar_chart_html(BarChart("t", bars, "ms", scale="log"))
    first, second, third = (left for _, left in shares(html, "dot"))
    assert second - first == pytest.approx(third - second, abs=0.01)
    assert third == 100


def test_series_differ_by_more_than_colour_and_have_a_legend() -> None:
    bars = [ValueBar("a", 1, series=f"s{number}") for number in range(20)]
    html = bar_chart_html(BarChart("t", bars, "ms"))
    looks = re.findall(r'class="sample"><i class="fill (k\d m\d)"', html)
    assert len(set(looks)) == 20
    assert len({look[:2] for look in looks[:8]}) == 8
    assert len({look[3:] for look in looks[:7]}) == 7


def lines(*series: Series, **axes: object) -> LineChart:
    return LineChart("t", list(series), Axis("x"), Axis("y", "bytes"), **axes)  # type: ignore[arg-type]


def paths(chart: LineChart, name: str = "stroke") -> list[str]:
    return re.findall(rf'<path class="{name} [^"]*" d="([^"]*)"', line_chart_html(chart))


def test_a_line_is_to_scale_from_the_upper_left() -> None:
    """The highest value leaves 4 % of the height free."""
    [path] = paths(lines(Series("a", [(0, 0.0), (5, 52.0), (10, 104.0)])))
    assert path == "M0 1000L500 519.2L1000 38.5"


def test_a_stepped_line_holds_its_height_until_the_next_point() -> None:
    [path] = paths(lines(Series("a", [(0, 0.0), (10, 104.0)], step=True)))
    assert path == "M0 1000L1000 1000L1000 38.5L1000 38.5"


def test_a_gap_divides_a_line_and_a_lone_point_stays_visible() -> None:
    [path] = paths(lines(Series("a", [(0, 0.0), (1, None), (2, 0.0), (4, 0.0)])))
    assert path == "M0 1000L0 1000M500 1000L1000 1000"


def test_a_band_goes_along_its_high_end_and_back_along_its_low_one() -> None:
    band = [(0.0, 52.0), (26.0, 104.0)]
    [path] = paths(lines(Series("a", [(0, 26.0), (1, 52.0)], band)), "band")
    assert path == "M0 519.2L1000 38.5L1000 759.6L0 1000Z"


def test_thousands_of_points_become_a_short_path_with_every_peak() -> None:
    points: list[tuple[float, float | None]] = [(x, 1.0 + x % 7) for x in range(50_000)]
    points[31_234] = (31_234, 100.0)
    [path] = paths(lines(Series("a", points)))
    assert len(path) < 60_000
    # Of 104: four percent of the height are free.
    assert " 38.5L" in path


def test_levels_are_on_the_axis_and_named() -> None:
    chart = lines(Series("a", [(0, 10.0), (1, 20.0)]), levels=[Level("card", 50.0, "bad")])
    html = line_chart_html(chart)
    assert shares(html, "level bad") == [("top", pytest.approx(3.846))]
    assert html.count("<span>card</span>") == 2  # at the line's end, and for narrow pages


def test_names_at_the_ends_of_lines_are_moved_apart() -> None:
    assert apart([0.1, 0.1, 0.5], 0.08) == pytest.approx([0.1, 0.18, 0.5])
    assert apart([0.95, 0.96, 1.0], 0.08) == pytest.approx([0.84, 0.92, 1.0])
    assert apart([], 0.08) == []


def test_few_points_are_a_table_and_many_are_key_figures() -> None:
    few = lines(
        Series("a", [(1, 1024.0), (2, None)], [(512.0, 2048.0), (0.0, 0.0)]),
        Series("b", [(1, 0.0), (2, 3.0)]),
    )
    assert line_table(few).rows == [
        ["1", "1 KiB (512 B to 2 KiB)", "0 B"],
        ["2", "–", "3 B"],  # noqa: RUF001
    ]
    many = lines(Series("a", [(x, float(x % 50)) for x in range(1, 100)]), Series("b", []))
    assert line_table(many).rows == [
        ["a", "99", "0 B", "49 B", "49", "49 B"],
        ["b", "0", *["–"] * 4],  # noqa: RUF001
    ]


def test_series_with_other_x_than_the_first_are_key_figures_too() -> None:
    chart = lines(Series("a", [(1, 5.0)]), Series("b", [(2, 7.0), (3, 6.0)]))
    assert line_table(chart).rows[1] == ["b", "2", "6 B", "7 B", "2", "6 B"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ValueBar("a", -1.0), "finite values from 0 up"),
        (lambda: ValueBar("a", float("nan")), "finite values"),
        (lambda: ValueBar("a", 1.0, low=1.0), "give low and high"),
        (lambda: ValueBar("a", 1.0, 3.0, 2.0), "from 3.0 down to 2.0"),
        (lambda: ValueBar("a", None, 1.0, 2.0), "a spread and no value"),
        (lambda: Series("s", [(0, 1.0)], [(0, 1), (0, 1)]), "1 points and a band of 2"),
        (lambda: Series("s", [(0, 1.0)], [(2.0, 1.0)]), "low end is above"),
        (lambda: Series("s", [(0, float("inf"))]), "not finite; None is a gap"),
        (lambda: Series("s", [(1, 1.0), (0, 1.0)]), "sort its points"),
    ],
)
def test_figures_that_cannot_be_drawn_are_refused(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=words):
        make()
