"""Orders that are learnt, and uses that nobody expected."""

from __future__ import annotations

import random

import pytest

from vramkit.driver import Device
from vramkit.weights import Policy, WeightStats
from vramkit.weights.orders import MOST_ORDERS

from .support import GRANULE, PROFILE, Loaded, layers, loaded

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(profile=PROFILE)]

COUNT = 18
FORWARD = list(range(COUNT))
BACKWARD = FORWARD[::-1]
RING = 4 * GRANULE


def difference(model: Loaded, before: WeightStats) -> tuple[int, int]:
    """Misses and uses out of order since then."""
    now = model.manager.stats()
    return now.misses - before.misses, now.off_order - before.off_order


def test_another_order_is_learnt_with_its_first_pass(device: Device) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        model.run(stream, BACKWARD)
        misses, off_order = difference(model, WeightStats(0, 0, 0, 0, 0, 0))
        assert misses == off_order == COUNT
        before = model.manager.stats()
        model.run(stream, BACKWARD)
        # Nothing was copied for its first step before it began.
        assert difference(model, before) == (1, 0)
        before = model.manager.stats()
        model.run(stream, BACKWARD)
        assert difference(model, before) == (0, 0)
        assert model.manager.schedule.order == tuple(BACKWARD)


def test_two_orders_in_turn_are_both_kept(device: Device) -> None:
    prefill, decode = FORWARD, [*range(0, COUNT, 3), 5, 4]
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        for _ in range(2):
            model.run(stream, prefill)
            model.run(stream, decode)
        model.manager.begin_pass()
        before = model.manager.stats()
        for _ in range(2):
            model.run(stream, prefill)
            model.run(stream, decode)
        assert difference(model, before) == (0, 0)


def test_one_order_several_times_and_then_another(device: Device) -> None:
    """What follows a pass is what followed it the last time."""
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        for _ in range(2):
            model.run(stream, BACKWARD)
            for _ in range(3):
                model.run(stream, FORWARD)
        before = model.manager.stats()
        for _ in range(3):
            model.run(stream, FORWARD)
        assert difference(model, before) == (0, 0)


def test_without_the_beginning_of_passes_nothing_is_learnt(device: Device) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        for _ in range(3):
            before = model.manager.stats()
            model.run(stream, BACKWARD, begin=False)
            misses, _ = difference(model, before)
            assert misses > COUNT / 2
        model.run(stream, FORWARD, begin=False)
        before = model.manager.stats()
        model.run(stream, FORWARD, begin=False)
        assert difference(model, before) == (0, 0)
        assert model.manager.schedule.order == tuple(FORWARD)


def test_a_pass_that_was_left_in_the_middle(device: Device) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        model.run(stream)
        model.run(stream, FORWARD[:7])
        for _ in range(2):
            model.run(stream)
        before = model.manager.stats()
        model.run(stream)
        assert difference(model, before) == (0, 0)


def test_a_pass_of_nothing_changes_nothing(device: Device) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        for _ in range(2):
            model.run(stream)
        before = model.manager.stats()
        model.manager.begin_pass()
        model.run(stream)
        assert difference(model, before) == (0, 0)


def test_a_jump_is_served_and_the_pass_goes_on_from_there(device: Device) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        model.run(stream, FORWARD, begin=False)
        model.run(stream, FORWARD[:4], begin=False)
        before = model.manager.stats()
        model.run(stream, FORWARD[12:], begin=False)
        assert difference(model, before) == (1, 1)
        before = model.manager.stats()
        model.run(stream, FORWARD, begin=False)
        assert difference(model, before) == (0, 0)


def test_a_group_that_is_used_twice_in_a_pass(device: Device) -> None:
    order = [0, 1, 2, 0, 1, 9, 2, 17, 0]
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        for _ in range(3):
            model.run(stream, order)
        before = model.manager.stats()
        model.run(stream, order)
        assert difference(model, before) == (0, 0)


@pytest.mark.parametrize("policy", ["stage1", "stage2", "history", "history1"])
def test_a_depth_for_which_an_order_has_no_room(device: Device, policy: str) -> None:
    """It is served as far as there is room: what the ring must hold is that of the first order."""
    forward = range(20)
    jumps = [2 * layer + part for layer in (0, 3, 6, 9, 1, 4, 7, 2, 5, 8) for part in (0, 1)]
    with (
        device.stream() as stream,
        loaded(device, layers(10), budget=8 * GRANULE, policy=policy) as model,
    ):
        for order in (forward, jumps, jumps, forward[::-1], forward[::-1], forward):
            model.run(stream, order)


def test_a_model_of_one_layer(device: Device) -> None:
    policy = Policy(depth=1, issue_at={"attn": "attn", "ffn": "end"}, own_ffn_first=True)
    with (
        device.stream() as stream,
        loaded(device, layers(1), budget=2 * GRANULE, policy=policy) as model,
    ):
        for _ in range(3):
            model.run(stream)


def test_orders_without_end_take_no_memory_without_end(device: Device) -> None:
    chosen = random.Random(1)
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        for _ in range(3 * MOST_ORDERS):
            model.run(stream, chosen.sample(FORWARD, 6))
        assert len(model.manager._orders) == MOST_ORDERS
        for _ in range(3):
            model.run(stream, BACKWARD)
        before = model.manager.stats()
        model.run(stream, BACKWARD)
        assert difference(model, before) == (0, 0)


def test_an_order_in_the_place_of_another_is_expected_behind_what_it_follows(
    device: Device,
) -> None:
    chosen = random.Random(2)
    orders = [chosen.sample(FORWARD, 6) for _ in range(2 * MOST_ORDERS)]
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        for order in orders:
            model.run(stream, FORWARD)
            model.run(stream, order)
        for _ in range(2):
            model.run(stream, FORWARD)
            model.run(stream, orders[-1])
        before = model.manager.stats()
        model.run(stream, FORWARD)
        model.run(stream, orders[-1])
        assert difference(model, before) == (0, 0)
