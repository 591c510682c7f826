"""What is copied when: policies, their presets, and the lists that each makes of a model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vramkit.weights import (
    POLICIES,
    BudgetError,
    Group,
    Layout,
    Policy,
    Schedule,
    make_schedule,
    plan_layout,
)
from vramkit.weights.schedule import Copy, chosen_policy

GRANULE = 4096
LAYERS = 10
COUNT = 2 * LAYERS
NOTHING = ((),) * COUNT


def model(layers: int = LAYERS, *, attn: int = 4, ffn: int = 6) -> list[Group]:
    sizes = (("attn", attn * GRANULE), ("ffn", ffn * GRANULE))
    return [Group(layer, name, nbytes) for layer in range(layers) for name, nbytes in sizes]


def laid_out(policy: Policy) -> Layout:
    """Two layers in the ring, or what the depth needs; no residents."""
    ring = 10 * GRANULE * (2 if policy.depth is None else 1 + policy.depth)
    return plan_layout(model(), budget=ring, depth=policy.depth, granularity=GRANULE)


def scheduled(policy: str | Policy) -> Schedule:
    chosen = chosen_policy(policy)
    return make_schedule(laid_out(chosen), range(COUNT), chosen)


def attn(layer: int) -> int:
    return layer % LAYERS * 2


def ffn(layer: int) -> int:
    return attn(layer) + 1


def by_layer(at_attn: Any, at_ffn: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(at(layer)) for layer in range(LAYERS) for at in (at_attn, at_ffn))


# Policies


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"wait": "spin"}, "wait is 'spin'; it may be 'event' or 'block'"),
        ({"issue_at": {"attn": "attn"}}, "issue_at and own_ffn_first have no effect without a dep"),
        ({"own_ffn_first": True}, "issue_at and own_ffn_first have no effect without a depth"),
        ({"depth": 2}, "a depth has no effect without issue_at"),
        ({"depth": 0, "own_ffn_first": True}, "depth is 0; it may be None, or an integer from 1 t"),
        ({"depth": 1025, "own_ffn_first": True}, "depth is 1025; it may be None, or an integer f"),
    ],
)
def test_policies_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Policy(**fields)


@pytest.mark.parametrize("depth", ["4", 1.5])
def test_a_depth_that_is_no_integer(depth: Any) -> None:
    with pytest.raises(TypeError, match=r"depth is .*; it may be None, or an integer from 1 to"):
        Policy(depth=depth, own_ffn_first=True)


@pytest.mark.parametrize("issue_at", [{"mlp": "attn"}, {"attn": "mlp"}, {"end": "ffn"}])
def test_names_that_the_model_does_not_have(issue_at: dict[str, str]) -> None:
    policy = Policy(depth=1, issue_at=issue_at)
    with pytest.raises(ValueError, match=r"no effect: groups are 'attn', 'ffn', and points are t"):
        scheduled(policy)


@pytest.mark.parametrize("policy", ["History", "", None, 4])
def test_policies_that_are_none(policy: Any) -> None:
    with pytest.raises(ValueError, match=r"policy is .*; it may be a Policy, or auto, history1, h"):
        chosen_policy(policy)


def test_the_presets() -> None:
    assert {name: (p.wait, p.depth, p.own_ffn_first) for name, p in POLICIES.items()} == {
        "auto": ("event", None, False),
        "history1": ("block", 4, False),
        "history": ("event", 1, False),
        "stage1": ("event", 4, False),
        "stage2": ("event", 4, True),
        "first_step": ("block", 4, True),
        "block_shallow": ("block", 1, False),
    }
    assert chosen_policy("stage2") is POLICIES["stage2"]


# Lists


def test_auto_copies_as_far_ahead_as_the_ring_has_room() -> None:
    schedule = scheduled("auto")
    assert schedule.order == schedule.following == tuple(range(COUNT))
    assert schedule.start == (0, 1, 2, 3)
    assert schedule.before == NOTHING
    assert schedule.after == tuple(
        tuple((step + ahead) % COUNT for ahead in (1, 2, 3, 4)) for step in range(COUNT)
    )


@pytest.mark.parametrize("policy", ["history1", "stage1"])
def test_four_layers_ahead(policy: str) -> None:
    schedule = scheduled(policy)
    assert (schedule.start, schedule.after) == ((), NOTHING)
    assert schedule.before == by_layer(
        lambda layer: [attn(layer + ahead) for ahead in (1, 2, 3, 4)],
        lambda layer: [ffn(layer + ahead) for ahead in (1, 2, 3, 4)],
    )


@pytest.mark.parametrize("policy", ["stage2", "first_step"])
def test_four_layers_ahead_behind_the_layers_own_ffn(policy: str) -> None:
    schedule = scheduled(policy)
    assert (schedule.start, schedule.after) == ((), NOTHING)
    assert schedule.before == by_layer(
        lambda layer: [ffn(layer), *(attn(layer + ahead) for ahead in (1, 2, 3, 4))],
        lambda layer: [ffn(layer + ahead) for ahead in (1, 2, 3, 4)],
    )


@pytest.mark.parametrize("policy", ["history", "block_shallow"])
def test_the_next_attn_alone(policy: str) -> None:
    schedule = scheduled(policy)
    assert (schedule.start, schedule.after) == ((), NOTHING)
    assert schedule.before == by_layer(lambda layer: [], lambda layer: [attn(layer + 1)])


def test_the_end_of_a_layer_is_a_point() -> None:
    schedule = scheduled(Policy(depth=1, issue_at={"attn": "end", "ffn": "attn"}))
    assert schedule.before == by_layer(lambda layer: [ffn(layer + 1)], lambda layer: [])
    assert schedule.after == by_layer(lambda layer: [], lambda layer: [attn(layer + 1)])


def test_residents_are_in_no_list() -> None:
    layout = plan_layout(model(), budget=60 * GRANULE, ring=20 * GRANULE, granularity=GRANULE)
    residents = {number for number, resident in enumerate(layout.resident) if resident}
    assert 0 < len(residents) < COUNT
    schedule = make_schedule(layout, range(COUNT), POLICIES["auto"])
    lists = (schedule.start, *schedule.before, *schedule.after)
    assert {group for each in lists for group in each} == set(range(COUNT)) - residents


def test_a_group_that_is_used_twice_is_named_once_in_a_list() -> None:
    layout = plan_layout(model(3), budget=20 * GRANULE, granularity=GRANULE)
    schedule = make_schedule(layout, [0, 1, 0, 2], POLICIES["auto"])
    assert layout.offsets == tuple(GRANULE * each for each in (0, 4, 10, 14, 5, 9))
    assert schedule.start == (0, 1, 2)
    assert schedule.after == ((1, 0, 2), (0, 2, 1), (2, 0, 1), (0, 1, 2))


def test_the_pass_that_follows_has_its_place_at_the_end() -> None:
    layout = laid_out(POLICIES["auto"])
    schedule = make_schedule(layout, range(8), POLICIES["auto"], [12, 13, 14, 15])
    assert schedule.following == (12, 13, 14, 15)
    assert schedule.after[5:] == ((6, 7, 12, 13), (7, 12, 13, 14), (12, 13, 14, 15))
    assert schedule.copies()[-1] == Copy(7, "after", 15, steps_ahead=4, behind=(7, 3))
    assert schedule.text().endswith(
        "after 3.ffn: copy 7.ffn, 24 KiB, to 0xe000, 4 steps ahead, behind 3.ffn"
    )


# Copies of a steady pass


def test_auto_copies_behind_the_group_whose_place_it_takes() -> None:
    assert scheduled("auto").copies() == [
        Copy(
            step,
            "after",
            (step + 4) % COUNT,
            steps_ahead=4,
            # All that were there before, the last one first.
            behind=tuple((step - back) % COUNT for back in range(0, COUNT, 4)),
        )
        for step in range(COUNT)
    ]


@pytest.mark.parametrize("policy", ["history1", "stage1", "stage2", "first_step"])
def test_four_layers_ahead_copies_one_group_a_step(policy: str) -> None:
    copies = scheduled(policy).copies()
    assert [(copy.step, copy.point, copy.group) for copy in copies] == [
        (step, "before", (step + 8) % COUNT) for step in range(COUNT)
    ]
    assert {copy.steps_ahead for copy in copies} == {8}


@pytest.mark.parametrize("policy", ["history", "block_shallow"])
def test_what_is_copied_on_demand_is_not_listed(policy: str) -> None:
    copies = scheduled(policy).copies()
    assert [(copy.step, copy.point, copy.group) for copy in copies] == [
        (ffn(layer), "before", attn(layer + 1)) for layer in range(LAYERS)
    ]


def test_nothing_is_copied_if_all_is_resident() -> None:
    layout = plan_layout(model(), budget=1 << 30, granularity=GRANULE)
    schedule = make_schedule(layout, range(COUNT), POLICIES["auto"])
    assert (schedule.copies(), schedule.text()) == ([], "")


def test_a_ring_that_holds_all_is_filled_once() -> None:
    layout = Layout(
        groups=(Group(0, "all", 512), Group(1, "all", 512)),
        resident=(False, False),
        offsets=(0, 512),
        resident_bytes=0,
        ring_bytes=1024,
        laps=1,
    )
    assert make_schedule(layout, [0, 1], POLICIES["auto"]).copies() == []


def test_the_text_has_a_line_for_each_copy() -> None:
    lines = scheduled("auto").text().splitlines()
    assert len(lines) == COUNT
    assert lines[0] == "after 0.attn: copy 2.attn, 16 KiB, to 0x0, 4 steps ahead, behind 0.attn"


# Room


def test_a_ring_that_is_too_small_for_a_depth() -> None:
    layout = laid_out(POLICIES["history"])
    with pytest.raises(
        ValueError,
        match=r"^depth is 4: the groups from 0.attn to 2.attn must be on the card at once, "
        r"96 KiB; the ring has 80 KiB$",
    ):
        make_schedule(layout, range(COUNT), POLICIES["stage1"])


def test_what_has_no_room_is_left_out_if_it_may_be() -> None:
    layout = laid_out(POLICIES["history"])
    schedule = make_schedule(layout, range(COUNT), POLICIES["stage1"], must_fit=False)
    assert schedule.before == by_layer(
        lambda layer: [attn(layer + 1)], lambda layer: [ffn(layer + 1)]
    )


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=10),
    st.sampled_from(["history", "stage1", "stage2"]),
    st.data(),
)
def test_a_layout_for_a_depth_has_room_for_its_schedule(
    sizes: list[tuple[int, int]], policy: str, data: st.DataObject
) -> None:
    groups = [
        Group(layer, name, nbytes * 512)
        for layer, pair in enumerate(sizes)
        for name, nbytes in zip(("attn", "ffn"), pair, strict=True)
    ]
    whole = -(-sum(group.nbytes for group in groups) // GRANULE)
    chosen = POLICIES[policy]
    budget = data.draw(st.integers(1 + whole // 2, whole + 1)) * GRANULE
    try:
        layout = plan_layout(groups, budget=budget, depth=chosen.depth, granularity=GRANULE)
    except BudgetError:
        assume(False)
    schedule = make_schedule(layout, range(len(groups)), chosen)
    streamed = {number for number, resident in enumerate(layout.resident) if not resident}
    assert {copy.group for copy in schedule.copies()} <= streamed


@given(st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=30), st.sampled_from([*POLICIES]))
def test_any_order_has_a_schedule_whose_copies_overwrite_nothing_that_is_needed_first(
    order: list[int], policy: str
) -> None:
    chosen = POLICIES[policy]
    layout = laid_out(chosen)
    schedule = make_schedule(layout, order, chosen, must_fit=False)
    for copy in schedule.copies():
        later = [*order[copy.step + 1 :], *order][: copy.steps_ahead - 1]
        if copy.point == "before":
            later.append(order[copy.step])
        assert copy.group not in later
        assert not any(layout.share_bytes(copy.group, other) for other in later)
