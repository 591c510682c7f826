"""What a difference of repetitions is worth."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramkit.lab.samples import FEWEST, NOISE, Range, Spread, compare, middle, ratio

# Whole numbers, zeros and repeats included: what counts and clocks give.
VALUE = st.one_of(st.integers(0, 5).map(float), st.floats(0, 1e12, allow_subnormal=False))
SAMPLE = st.lists(VALUE, min_size=1, max_size=12)
OPPOSITE = {
    "lower": "higher",
    "higher": "lower",
    "no difference": "no difference",
    "too few": "too few",
}


@given(SAMPLE, SAMPLE)
def test_the_other_way_round_is_the_opposite(values: list[float], other: list[float]) -> None:
    assert compare(other, values).verdict == OPPOSITE[compare(values, other).verdict]


@given(SAMPLE)
def test_a_sample_does_not_differ_from_itself(values: list[float]) -> None:
    found = compare(values, values)
    assert found.verdict == "no difference"
    assert found.relative == 0 and found.least <= 0 <= found.most


@given(SAMPLE, SAMPLE)
def test_a_verdict_agrees_with_the_figures(values: list[float], other: list[float]) -> None:
    found = compare(values, other)
    assert found.least <= found.relative <= found.most
    if found.verdict == "lower":
        assert found.relative < 0 and found.most < 0
    elif found.verdict == "higher":
        assert found.relative > 0 and found.least > 0


@given(st.lists(VALUE, min_size=FEWEST, max_size=12), st.floats(1.02, 100))
def test_what_lies_wholly_above_is_higher(values: list[float], factor: float) -> None:
    spread = Spread.of(values)
    above = [spread.p90 * factor + 1.0] * FEWEST
    assert compare(above, values).verdict == "higher"


@given(SAMPLE, st.integers(-20, 20))
def test_the_unit_does_not_matter(values: list[float], power: int) -> None:
    """Powers of two, which scale without rounding."""
    other = [value + 1 for value in values]
    scaled = [[value * 2.0**power for value in each] for each in (values, other)]
    assert compare(*scaled) == compare(values, other)


@given(SAMPLE)
def test_the_median_lies_between_the_percentiles(values: list[float]) -> None:
    spread = Spread.of(values)
    assert min(values) <= spread.p10 <= spread.median <= spread.p90 <= max(values)
    assert spread.count == len(values) and spread.relative >= 0


def test_too_few_repetitions_say_nothing() -> None:
    assert compare([1.0, 1.1, 1.2, 1.3], [2.0] * 9).verdict == "too few"
    assert compare([1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.1, 2.2, 2.3, 2.4]).verdict == "lower"


def test_two_exact_repeats_are_enough_and_one_value_is_not() -> None:
    assert compare([3.0, 3.0], [4.0, 4.0]).verdict == "lower"
    assert compare([3.0], [4.0]).verdict == "too few"
    assert compare([3.0, 3.0], [4.0, 4.0, 4.1]).verdict == "too few"


def test_overlapping_percentiles_are_no_difference() -> None:
    assert compare([1.0, 2, 3, 4, 5], [3.0, 4, 5, 6, 7]).verdict == "no difference"
    # Percentiles that touch overlap.
    assert compare([1.0] * 5, [1.0, 1.0, 2.0, 2.0, 2.0]).verdict == "no difference"


def test_medians_within_the_noise_are_no_difference_however_exact() -> None:
    assert compare([1.0 + NOISE] * 9, [1.0] * 9).verdict == "no difference"
    assert compare([1.0 + 2 * NOISE] * 9, [1.0] * 9).verdict == "higher"


def test_zeros() -> None:
    assert compare([0.0] * 5, [0.0] * 5).verdict == "no difference"
    above = compare([2.0] * 5, [0.0] * 5)
    assert (above.verdict, above.relative) == ("higher", math.inf)
    below = compare([0.0] * 5, [2.0] * 5)
    assert (below.verdict, below.relative) == ("lower", -1.0)
    # A median of zero alone is no difference: the percentiles overlap.
    assert compare([1.0] * 5, [0.0, 0.0, 0.0, 2.0, 2.0]).verdict == "no difference"


def test_no_values_are_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        compare([], [1.0])


def test_a_ratio_has_the_ends_of_the_difference() -> None:
    here, there = [9.0, 10.0, 11.0, 12.0, 13.0], [90.0, 100.0, 110.0, 120.0, 130.0]
    found, difference = ratio(here, there), compare(here, there)
    ends = difference.relative, difference.least, difference.most
    assert (found.median, found.least, found.most) == pytest.approx([1 + each for each in ends])
    assert found.least < found.median < found.most
    assert ratio([1.0], [0.0]).median == math.inf and ratio([0.0], [0.0]).median == 1.0


def test_the_middle_of_several_has_the_middle_of_their_ends() -> None:
    ranges = [Range(2.0, 1.0, 9.0), Range(3.0, 2.5, 4.0), Range(1.0, 0.5, 1.5)]
    assert middle(ranges) == Range(2.0, 1.0, 4.0)
    with pytest.raises(ValueError, match="no ranges"):
        middle([])
