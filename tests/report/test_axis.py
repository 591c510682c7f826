"""Axes: round steps in the unit that is shown, and places that are to scale."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramkit.report.axis import Scale, linear_scale, log_scale, nice_step
from vramkit.report.units import Unit, value_text

GIB = float(1 << 30)


def texts(scale: Scale) -> list[str]:
    return [tick.text for tick in scale.ticks]


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        ([176.2], "ms", ["0", "50 ms", "100 ms", "150 ms"]),
        ([1760], "ms", ["0", "0.5 s", "1.0 s", "1.5 s"]),
        ([0.8], "us", ["0", "200 ns", "400 ns", "600 ns", "800 ns"]),
        ([2.3 * GIB], "bytes", ["0", "0.5 GiB", "1.0 GiB", "1.5 GiB", "2.0 GiB"]),
        ([139 * GIB], "bytes", ["0", "50 GiB", "100 GiB"]),
        ([55.4e9], "bytes/s", ["0", "10 GB/s", "20 GB/s", "30 GB/s", "40 GB/s", "50 GB/s"]),
        ([2], "count", ["0", "1", "2"]),
        ([40_000], "count", ["0", "10,000", "20,000", "30,000", "40,000"]),
        ([400_000], "count", ["0", "100 k", "200 k", "300 k", "400 k"]),
        ([0.021], "share", ["0", "0.5 %", "1.0 %", "1.5 %", "2.0 %"]),
        ([1.2], "ratio", ["0", "0.2×", "0.4×", "0.6×", "0.8×", "1.0×", "1.2×"]),  # noqa: RUF001
        ([-3, 5], "count", ["-2", "0", "2", "4"]),
        ([0, 0], "bytes", ["0"]),
        ([], "ms", ["0"]),
    ],
)
def test_ticks_are_round_in_one_unit(values: list[float], unit: Unit, expected: list[str]) -> None:
    assert texts(linear_scale(values, unit, 6)) == expected


def test_an_axis_that_need_not_begin_at_zero_spans_its_values() -> None:
    scale = linear_scale([101.0, 109.0], "ms", 5, from_zero=False)
    assert (scale.low, scale.high) == (101.0, 109.0)
    assert texts(scale) == ["102 ms", "104 ms", "106 ms", "108 ms"]
    same = linear_scale([7.0], "ms", 5, from_zero=False)
    assert same.share(7.0) == pytest.approx(0.5)
    assert texts(same) == ["7 ms"]


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        ([12.3, 176], "ms", ["10 ms", "20 ms", "50 ms", "100 ms"]),
        ([3e-8, 2e-3], "s", ["100 ns", "1 µs", "10 µs", "100 µs", "1 ms"]),
        ([300, GIB], "bytes", ["1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB"]),
        ([0, 7], "us", ["5 µs", "10 µs", "20 µs", "50 µs"]),
        ([1, 1e12], "count", ["1", "100", "10,000", "1 M", "100 M", "10 G", "1 T"]),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_powers(
    values: list[float], unit: Unit, expected: list[str]
) -> None:
    assert texts(log_scale(values, unit, 6)) == expected


def test_zero_has_no_place_on_a_logarithmic_axis() -> None:
    scale = log_scale([0, 10, 1000], "ms", 5)
    assert not scale.shows(0) and scale.shows(10)
    assert 0 < scale.share(10) < 0.2
    assert scale.share(100) == pytest.approx((scale.share(10) + scale.share(1000)) / 2)


@given(
    st.lists(st.floats(0, 1e15), min_size=1, max_size=5),
    st.sampled_from(["ms", "bytes", "count", "share"]),
    st.booleans(),
)
def test_every_value_has_its_place_and_ticks_are_few_and_apart(
    values: list[float], unit: Unit, log: bool
) -> None:
    values = [value if value > 1e-9 else 0.0 for value in values]
    scale = log_scale(values, unit, 6) if log else linear_scale(values, unit, 6)
    shares = [scale.share(value) for value in values if scale.shows(value)]
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in shares)
    ticks = [scale.share(tick.value) for tick in scale.ticks]
    assert ticks == sorted(ticks) and len(set(texts(scale))) == len(ticks) <= 9
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in ticks)


@given(st.floats(1e-12, 1e15), st.integers(1, 12))
def test_a_step_is_the_smallest_that_keeps_to_the_limit(length: float, most: int) -> None:
    step = nice_step(length, most)
    digits = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(digits - nice) for nice in (1, 2, 5)) < 1e-6
    assert length / step <= most * (1 + 1e-6)
    assert length / (step / 2.5) > most * (1 - 1e-6)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1500, "us", "1.50 ms"),
        (3 * GIB, "bytes", "3 GiB"),
        (12, "count", "12"),
        (1_234_567, "count", "1.23 M"),
        (2.5, "count", "2.50"),
        (1.374, "ratio", "1.37×"),  # noqa: RUF001
        (0.0099, "share", "0.99 %"),
        (0, "share", "0 %"),
    ],
)
def test_a_figure_has_three_digits_and_its_unit(value: float, unit: Unit, text: str) -> None:
    assert value_text(value, unit) == text
