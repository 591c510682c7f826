"""Where groups lie on the card: within the budget, around a ring that closes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from soak import rounds

from vramkit.weights import BudgetError, Group, Layout, plan_layout
from vramkit.weights.layout import ALIGNMENT

GRANULE = 4096

EXAMPLES = settings(max_examples=rounds(100, 5000))


@st.composite
def models(draw: st.DrawFn) -> list[Group]:
    names = draw(st.sampled_from([("all",), ("attn", "ffn"), ("attn", "ffn", "norm")]))
    alike = draw(st.booleans())
    layers = draw(st.integers(1, 12))
    sizes = st.integers(1, 20 * GRANULE)
    same = [draw(sizes) for _ in names]
    return [
        Group(layer, name, same[number] if alike else draw(sizes))
        for layer in range(layers)
        for number, name in enumerate(names)
    ]


def aligned(nbytes: int, multiple: int = ALIGNMENT) -> int:
    return -(-nbytes // multiple) * multiple


def whole(groups: list[Group]) -> int:
    return aligned(sum(aligned(group.nbytes) for group in groups), GRANULE)


def streamed(layout: Layout) -> list[int]:
    return [number for number, resident in enumerate(layout.resident) if not resident]


def budgets(groups: list[Group], least: int) -> st.SearchStrategy[int]:
    """From `least` bytes to all that the groups need."""
    most = whole(groups) + GRANULE
    return st.integers(min(aligned(least, GRANULE), most), most)


def together(groups: list[Group], layers: int) -> int:
    """Bytes of the largest layers."""
    sums: dict[int, int] = {}
    for group in groups:
        sums[group.layer] = sums.get(group.layer, 0) + aligned(group.nbytes)
    return sum(sorted(sums.values())[-layers:])


@st.composite
def layouts(draw: st.DrawFn, *, prefer: bool = True) -> tuple[Layout, int]:
    """With the budget that was given."""
    groups = draw(models())
    largest = aligned(max(group.nbytes for group in groups), GRANULE)
    options: dict[str, Any] = {}
    if prefer:
        options["prefer"] = draw(st.sets(st.integers(0, len(groups) - 1), max_size=3))
    match draw(st.sampled_from(["plain", "ring", "depth"])):
        case "plain":
            budget = draw(budgets(groups, largest))
        case "ring":
            budget = draw(budgets(groups, largest))
            options["ring"] = draw(st.integers(largest, budget))
        case _:
            options["depth"] = depth = draw(st.integers(1, 3))
            budget = draw(budgets(groups, 3 * together(groups, depth + 1) // 2))
    try:
        return plan_layout(groups, budget=budget, granularity=GRANULE, **options), budget
    except BudgetError:
        # A ring that closes may need more than what must be in it.
        assert "depth" in options
        assume(False)
        raise


@EXAMPLES
@given(layouts())
def test_it_keeps_to_the_budget_and_every_group_has_its_bytes(given: tuple[Layout, int]) -> None:
    layout, budget = given
    assert layout.device_bytes <= budget
    assert layout.resident_bytes % GRANULE == layout.ring_bytes % GRANULE == 0
    stays_at = 0
    for group, resident, offset in zip(layout.groups, layout.resident, layout.offsets, strict=True):
        assert offset % ALIGNMENT == 0
        if resident:
            assert offset >= stays_at  # behind the resident before
            stays_at = offset + group.nbytes
            assert stays_at <= layout.resident_bytes
        else:
            assert 0 <= offset < layout.ring_bytes
            assert group.nbytes <= layout.ring_bytes
    assert layout.streamed_bytes == sum(layout.groups[n].nbytes for n in streamed(layout))
    assert bool(layout.ring_bytes) is bool(layout.laps) is bool(streamed(layout))


def slack(layout: Layout) -> float:
    """What rounding the ring to granules added, as a part of the streamed bytes; 0 for a ring that
    does not close."""
    total = sum(aligned(layout.groups[number].nbytes) for number in streamed(layout))
    if layout.ring_bytes > aligned(-(-total // layout.laps), GRANULE):
        return 0.0
    return layout.laps * layout.ring_bytes / total - 1


@EXAMPLES
@given(layouts())
def test_streamed_groups_lie_behind_each_other_around_the_ring(given: tuple[Layout, int]) -> None:
    layout, _ = given
    numbers = streamed(layout)
    for one, other in pairwise(numbers):
        nbytes = aligned(layout.groups[one].nbytes)
        gap = (layout.offsets[other] - layout.offsets[one] - nbytes) % layout.ring_bytes
        assert gap <= nbytes * slack(layout) + ALIGNMENT
        if nbytes + gap + layout.groups[other].nbytes <= layout.ring_bytes:
            assert not layout.share_bytes(one, other)


@EXAMPLES
@given(layouts())
def test_the_ring_closes_if_it_can(given: tuple[Layout, int]) -> None:
    """The last group of a pass ends where the first begins, unless a ring that does so would be
    smaller than the largest group."""
    layout, _ = given
    numbers = streamed(layout)
    assume(numbers)
    sizes = {number: aligned(layout.groups[number].nbytes) for number in numbers}
    smallest = aligned(-(-sum(sizes.values()) // layout.laps), GRANULE)
    assert layout.ring_bytes == max(smallest, aligned(max(sizes.values()), GRANULE))
    if layout.ring_bytes == smallest:
        first, last = numbers[0], numbers[-1]
        gap = (layout.offsets[first] - layout.offsets[last] - sizes[last]) % layout.ring_bytes
        assert gap <= sizes[last] * slack(layout) + ALIGNMENT


@EXAMPLES
@given(layouts(), st.data())
def test_groups_share_bytes_if_their_bytes_meet(
    given: tuple[Layout, int], data: st.DataObject
) -> None:
    layout, _ = given
    numbers = st.integers(0, len(layout.groups) - 1)
    one, other = data.draw(numbers), data.draw(numbers)

    def blocks(number: int) -> set[int]:
        """Of 512 bytes."""
        first = layout.offsets[number] // ALIGNMENT
        count = -(-layout.groups[number].nbytes // ALIGNMENT)
        if layout.resident[number]:
            return {-1 - each for each in range(first, first + count)}
        return {each % (layout.ring_bytes // ALIGNMENT) for each in range(first, first + count)}

    assert layout.share_bytes(one, other) is bool(blocks(one) & blocks(other))
    assert layout.share_bytes(one, other) is layout.share_bytes(other, one)


@EXAMPLES
@given(layouts(prefer=False))
def test_residents_are_spread_evenly(given: tuple[Layout, int]) -> None:
    """In no part of the pass from its beginning on do the resident bytes differ from their even
    share by more than two of the largest group."""
    layout, _ = given
    sizes = [aligned(group.nbytes) for group in layout.groups]
    stays = [
        nbytes if resident else 0 for nbytes, resident in zip(sizes, layout.resident, strict=True)
    ]
    for end in range(len(sizes)):
        even = sum(stays) * sum(sizes[:end]) / sum(sizes)
        assert abs(sum(stays[:end]) - even) <= 2 * max(sizes)


@given(st.integers(2, 40), st.data())
def test_equal_residents_never_stand_further_apart_than_they_must(
    count: int, data: st.DataObject
) -> None:
    budget = data.draw(st.integers(2, count - 1)) if count > 2 else 2
    groups = [Group(layer, "all", GRANULE) for layer in range(count)]
    layout = plan_layout(groups, budget=budget * GRANULE, ring=2 * GRANULE, granularity=GRANULE)
    residents = [number for number, resident in enumerate(layout.resident) if resident]
    assume(residents)
    apart = [later - earlier for earlier, later in pairwise(residents)]
    around = count - residents[-1] + residents[0]  # into the next pass
    assert max([*apart, around]) <= -(-count // len(residents)) + 1


@given(models(), st.integers(1, 3), st.data())
def test_a_depth_has_its_layers_in_the_ring_at_once(
    groups: list[Group], depth: int, data: st.DataObject
) -> None:
    budget = data.draw(budgets(groups, 3 * together(groups, depth + 1) // 2))
    try:
        layout = plan_layout(groups, budget=budget, depth=depth, granularity=GRANULE)
    except BudgetError:
        assume(False)
    count = 1 + max(group.layer for group in groups)
    for first in range(count):
        layers = {(first + each) % count for each in range(min(depth + 1, count))}
        numbers = [n for n in streamed(layout) if layout.groups[n].layer in layers]
        assert sum(aligned(layout.groups[n].nbytes) for n in numbers) <= layout.ring_bytes


def test_all_are_resident_if_they_fit() -> None:
    groups = [Group(layer, "all", 5000) for layer in range(3)]
    layout = plan_layout(groups, budget=16384, granularity=GRANULE)
    assert layout == Layout(
        groups=tuple(groups),
        resident=(True,) * 3,
        offsets=(0, 5120, 10240),
        resident_bytes=16384,
        ring_bytes=0,
        laps=0,
    )


def test_five_groups_go_around_a_ring_of_two_without_a_gap() -> None:
    groups = [Group(layer, "all", 6 * GRANULE) for layer in range(5)]
    layout = plan_layout(groups, budget=12 * GRANULE, granularity=GRANULE)
    assert (layout.ring_bytes, layout.laps) == (10 * GRANULE, 3)
    assert layout.offsets == tuple(GRANULE * each for each in (0, 6, 2, 8, 4))
    assert layout.streamed_bytes == 30 * GRANULE


def test_a_ring_that_closes_but_is_too_small_for_a_group_is_not_made() -> None:
    groups = [Group(0, "all", 10 * GRANULE), Group(1, "all", GRANULE)]
    layout = plan_layout(groups, budget=10 * GRANULE, granularity=GRANULE)
    assert (layout.ring_bytes, layout.offsets) == (10 * GRANULE, (0, 0))


def test_a_budget_that_is_no_multiple_of_granules_is_kept() -> None:
    groups = [Group(layer, "all", 1024) for layer in range(20)]
    layout = plan_layout(groups, budget=3 * GRANULE + 2048, ring=GRANULE, granularity=GRANULE)
    assert layout.device_bytes == 3 * GRANULE


def test_preferred_groups_are_resident_before_others() -> None:
    groups = [Group(layer, "all", GRANULE) for layer in range(12)]
    layout = plan_layout(
        groups, budget=6 * GRANULE, ring=2 * GRANULE, prefer=(11, 10, 0), granularity=GRANULE
    )
    assert [number for number, resident in enumerate(layout.resident) if resident] == [0, 5, 10, 11]
    few = plan_layout(
        groups, budget=4 * GRANULE, ring=2 * GRANULE, prefer=(11, 10, 0), granularity=GRANULE
    )
    assert [number for number, resident in enumerate(few.resident) if resident] == [10, 11]


# Errors


def test_a_budget_that_is_too_small_says_what_is_needed() -> None:
    groups = [Group(0, "attn", 4096), Group(0, "ffn", 12 << 20), Group(1, "ffn", 30 << 20)]
    with pytest.raises(BudgetError) as caught:
        plan_layout(groups, budget=20 << 20)
    assert str(caught.value).splitlines() == [
        "budget is 20 MiB, too little for these weights:",
        "  at least: a ring of the largest group, 1.ffn  30 MiB",
        "  copies beside compute: a ring of two layers   60 MiB",
        "  everything resident                           44 MiB",
    ]


def test_a_ring_that_is_too_small_is_named() -> None:
    groups = [Group(layer, "all", 10 << 20) for layer in range(3)]
    with pytest.raises(BudgetError, match=r"^ring is 8 MiB, too little for these weights:"):
        plan_layout(groups, budget=20 << 20, ring=8 << 20)
    with pytest.raises(BudgetError, match=r"^budget is 4 MiB, too little for these weights:"):
        plan_layout(groups, budget=4 << 20, ring=8 << 20)


def test_a_budget_that_is_too_small_for_a_depth() -> None:
    groups = [Group(layer, "all", 10 << 20) for layer in range(6)]
    plan_layout(groups, budget=30 << 20, depth=2)
    with pytest.raises(BudgetError, match=r"^budget is 29 MiB; with this depth 30 MiB must be on"):
        plan_layout(groups, budget=29 << 20, depth=2)


def test_no_groups() -> None:
    with pytest.raises(ValueError, match="there are no groups of weights"):
        plan_layout([], budget=1 << 20)


def test_a_ring_has_no_effect_with_a_depth() -> None:
    with pytest.raises(ValueError, match="ring has no effect with a depth"):
        plan_layout([Group(0, "all", 1)], budget=1 << 20, ring=1 << 20, depth=1)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_a_group_without_bytes(nbytes: int) -> None:
    groups = [Group(0, "attn", 512), Group(3, "ffn", nbytes)]
    with pytest.raises(ValueError, match=rf"group 3.ffn has {nbytes} bytes; it must have some"):
        plan_layout(groups, budget=1 << 20)


def test_layers_of_one_group_have_room_for_two() -> None:
    """Of an odd number, the ring closes above two layers where the budget allows, else below."""
    mib = 1 << 20
    groups = [Group(layer, "all", 100 * mib) for layer in range(11)]
    assert plan_layout(groups, budget=230 * mib).ring_bytes == 220 * mib
    assert plan_layout(groups, budget=200 * mib).ring_bytes < 200 * mib
    parts = [Group(layer, name, 50 * mib) for layer in range(11) for name in ("attn", "ffn")]
    assert plan_layout(parts, budget=230 * mib).ring_bytes < 200 * mib
