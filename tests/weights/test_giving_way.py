"""Residents in blocks of a pool: they give way when it is short, and return."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramkit import Pool
from vramkit.driver import Device, OutOfMemoryError, Simulator, Stream
from vramkit.weights import BudgetError, Group, WeightManager
from vramkit.weights.giving_way import RETURN_AFTER, that_give_way
from vramkit.weights.layout import lay_out_again, plan_layout

from .support import KIB, PROFILE, Loaded, layers, loaded, sources

MIB = 1 << 20
GROUPS = layers(8, attn=256 * KIB, ffn=512 * KIB)
"""6 MiB."""
BUDGET = 4 * MIB
"""A ring of two layers, and residents for the rest."""
LIMIT = 6 * MIB

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(profile=PROFILE)]


@pytest.fixture
def pool(device: Device) -> Iterator[Pool]:
    with Pool(device=device, limit=LIMIT, background=False) as made:
        yield made
        assert made.check_invariants() == ""


@pytest.fixture
def stream(device: Device) -> Iterator[Stream]:
    with device.stream() as made:
        yield made


@contextmanager
def offloaded(
    device: Device, pool: Pool, groups: Sequence[Group] = GROUPS, **options: Any
) -> Iterator[Loaded]:
    with loaded(device, groups, **{"budget": BUDGET, "pool": pool, **options}) as model:
        yield model


def away(manager: WeightManager) -> int:
    stats = manager.giving_way()
    assert stats is not None
    return stats.away


def run_until_all_are_back(model: Loaded, stream: Stream) -> int:
    """Passes that it took."""
    for passes in range(200):
        if not away(model.manager):
            return passes
        model.run(stream)
        model.manager.begin_pass()
    raise AssertionError("they did not return")


def test_a_shortage_takes_residents_back_and_they_return(
    device: Device, pool: Pool, stream: Stream
) -> None:
    with offloaded(device, pool) as model, device.stream() as other:
        first = model.manager.layout
        in_pool = pool.stats().current_usage
        assert in_pool == sum(GROUPS[n].nbytes for n in range(len(GROUPS)) if first.resident[n])
        for _ in range(2):
            model.run(stream)
        model.manager.begin_pass()
        before = model.manager.stats()
        cache = pool.malloc(4 * MIB, other)
        device.fill(cache, 1, 4 * MIB, stream=other)
        stats = model.manager.giving_way()
        assert stats is not None
        assert stats.away == stats.gave_way > 0
        assert (
            stats.away_bytes
            == stats.gave_way_bytes
            == in_pool - (pool.stats().current_usage - 4 * MIB)
        )
        for _ in range(3):
            model.run(stream)
        now = model.manager.layout
        assert sum(first.resident) - sum(now.resident) == stats.away
        assert now.ring_bytes == first.ring_bytes
        # The first pass begins with a ring that is planned again; then all comes in time.
        misses = model.manager.stats().misses
        assert misses - before.misses <= 2
        model.run(stream)
        assert model.manager.stats().misses == misses
        pool.free(cache, stream=other)
        passes = run_until_all_are_back(model, stream)
        assert passes >= RETURN_AFTER * stats.away - RETURN_AFTER
        again = model.manager.giving_way()
        assert again is not None
        assert (again.gave_way, again.returned, again.away) == (stats.away, stats.away, 0)
        assert model.manager.layout.resident == first.resident
        assert model.manager.layout.resident_bytes == first.resident_bytes
        model.run(stream)  # fills the ring that was planned again
        copied = model.manager.stats().copied_bytes
        model.run(stream)
        assert model.manager.stats().copied_bytes - copied == first.streamed_bytes


def test_what_is_in_use_or_pinned_stays(device: Device, pool: Pool, stream: Stream) -> None:
    with offloaded(device, pool) as model:
        manager = model.manager
        model.run(stream)
        give_way = [n for n, g in enumerate(GROUPS) if manager.gives_way(g.layer, g.name)]
        assert len(give_way) >= 3
        used, pinned = GROUPS[give_way[0]], GROUPS[give_way[1]]
        with manager.using(used.layer, used.name, compute_stream=stream):
            manager.prefetch_group_async(pinned.layer, pinned.name, pin=True)
            with pytest.raises(OutOfMemoryError):
                pool.malloc(LIMIT, stream)
            assert away(manager) == len(give_way) - 2
            model.read(give_way[0], stream)
        manager.release(pinned.layer, pinned.name)
        for _ in range(3):
            model.run(stream)


def test_all_in_vain_leaves_the_model_usable(device: Device, pool: Pool, stream: Stream) -> None:
    with offloaded(device, pool) as model:
        model.run(stream)
        held = pool.malloc(1 * MIB, stream)
        with pytest.raises(OutOfMemoryError):
            pool.malloc(LIMIT, stream)
        assert away(model.manager) == sum(model.manager.gives_way(g.layer, g.name) for g in GROUPS)
        for _ in range(2):
            model.run(stream)
        pool.free(held)
        run_until_all_are_back(model, stream)


def test_a_shortage_in_the_middle_of_a_pass(device: Device, pool: Pool, stream: Stream) -> None:
    """Groups that gave way are used later in the same pass, while others are in use."""
    with offloaded(device, pool) as model:
        manager = model.manager
        for _ in range(2):
            model.run(stream)
        for at in (0, 3, 8, 15):
            manager.begin_pass()
            cache = 0
            for number, group in enumerate(GROUPS):
                with manager.using(group.layer, group.name, compute_stream=stream):
                    model.read(number, stream)
                    if number == at:
                        cache = pool.malloc(5 * MIB, stream)
                        device.fill(cache, 3, 5 * MIB, stream=stream)
            pool.free(cache)
            run_until_all_are_back(model, stream)


def test_a_group_that_gave_way_finds_room_beside_one_in_use(
    device: Device, pool: Pool, stream: Stream
) -> None:
    with offloaded(device, pool) as model:
        manager = model.manager
        model.run(stream)
        may = [n for n, g in enumerate(GROUPS) if manager.gives_way(g.layer, g.name)]
        streamed = [n for n in range(len(GROUPS)) if not manager.layout.resident[n]]
        for number in streamed[:3]:
            group = GROUPS[number]
            with manager.using(group.layer, group.name, compute_stream=stream):
                model.read(number, stream)
                cache = pool.malloc(5 * MIB, stream)
                address = manager.address(group.layer, group.name)
                gone = [n for n in may if not manager.on_its_way(GROUPS[n].layer, GROUPS[n].name)]
                assert len(gone) == away(manager) > 1
                for each in gone:
                    model.use(each, stream)
                assert manager.address(group.layer, group.name) == address
                model.read(number, stream)
            manager.begin_pass()
            layout = manager.layout
            assert lay_out_again(layout, layout.resident) == layout  # none lies beside the others
            pool.free(cache)
            run_until_all_are_back(model, stream)


def test_the_ring_must_have_room_for_what_is_in_use(
    device: Device, pool: Pool, stream: Stream
) -> None:
    groups = [Group(layer, "all", 512 * KIB) for layer in range(8)]
    with offloaded(device, pool, groups, budget=3 * MIB, ring=512 * KIB) as model:
        manager = model.manager
        resident = next(g for g in groups if manager.gives_way(g.layer, g.name))
        streamed = next(g for n, g in enumerate(groups) if not manager.layout.resident[n])
        with manager.using(streamed.layer, streamed.name, compute_stream=stream):
            cache = pool.malloc(5 * MIB, stream)
            with pytest.raises(ValueError, match=f"in use by group {streamed}"):
                manager.wait_group_ready(resident.layer, resident.name, compute_stream=stream)
        model.run(stream)
        pool.free(cache)


def test_pinning_and_waiting_for_a_group_that_gave_way(
    device: Device, pool: Pool, stream: Stream
) -> None:
    with offloaded(device, pool) as model:
        manager = model.manager
        model.run(stream)
        one, two = [g for g in GROUPS if manager.gives_way(g.layer, g.name)][:2]
        cache = pool.malloc(5 * MIB, stream)
        manager.prefetch_group_async(one.layer, one.name, pin=True)
        assert manager.on_its_way(one.layer, one.name)
        model.use(GROUPS.index(one), stream)
        manager.ensure_group_on_gpu(two.layer, two.name)
        assert manager.on_its_way(two.layer, two.name)
        model.run(stream)
        pool.free(cache)


def test_a_return_that_causes_a_shortage_doubles_the_wait(
    device: Device, pool: Pool, stream: Stream
) -> None:
    """Memory is asked for once a pass, between the uses at which its amount is seen."""
    with offloaded(device, pool) as model:
        manager = model.manager
        returns = []
        model.run(stream)
        pool.free(pool.malloc(5 * MIB, stream))
        for _ in range(60):
            before = manager.giving_way()
            model.run(stream)
            pool.free(pool.malloc(5 * MIB, stream), stream=stream)
            device.synchronize()  # it can be had at once
            manager.begin_pass()
            after = manager.giving_way()
            assert before is not None and after is not None
            returns.append(after.returned - before.returned)
        at = [number for number, returned in enumerate(returns) if returned]
        waits = [later - earlier for earlier, later in pairwise(at)]
        assert max(returns) == 1
        assert waits[:3] == sorted(waits[:3]) and waits[2] >= 2 * waits[1] - 1 >= waits[0]


def test_without_room_for_twice_its_bytes_a_group_stays_away(
    device: Device, pool: Pool, stream: Stream
) -> None:
    with offloaded(device, pool) as model:
        model.run(stream)
        pool.free(pool.malloc(5 * MIB, stream))
        gone = away(model.manager)
        # Enough for the smallest group, and not for two of them.
        cache = pool.malloc(LIMIT - pool.stats().current_usage - 384 * KIB, stream)
        for _ in range(2 * RETURN_AFTER):
            model.run(stream)
            model.manager.begin_pass()
        assert away(model.manager) == gone
        pool.free(cache)
        run_until_all_are_back(model, stream)


def test_a_steady_pass_with_a_pool_allocates_and_waits_for_nothing(
    device: Device, pool: Pool, stream: Stream, sim: Simulator
) -> None:
    with offloaded(device, pool) as model:
        for _ in range(2):
            model.run(stream)
        sim.reset_call_counts()
        model.run(stream)
        counts = {call for call, count in sim.call_counts().items() if count}
        assert not {call for call in counts if "Synchronize" in call or "Alloc" in call}
        assert not counts & {"cuMemMap", "cuMemCreate", "cuEventCreate", "cuMemGetInfo_v2"}


def test_a_shortage_on_another_thread_while_passes_run(
    device: Device, pool: Pool, stream: Stream
) -> None:
    with offloaded(device, pool) as model, device.stream() as other:
        end = threading.Event()
        failures: list[BaseException] = []

        def grow() -> None:
            try:
                while not end.is_set():
                    cache = pool.malloc(4 * MIB, other)
                    device.fill(cache, 1, 4 * MIB, stream=other)
                    pool.free(cache, stream=other)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=grow)
        thread.start()
        try:
            for _ in range(40):
                model.run(stream)
        finally:
            end.set()
            thread.join()
        assert not failures
        stats = model.manager.giving_way()
        assert stats is not None and stats.gave_way > 0


def test_stages_without_anything_that_can_give_way(device: Device, pool: Pool) -> None:
    with sources(device, GROUPS) as (addresses, _):
        for expected, options in {
            "(vramkit.integrations.torch.install())": {"budget": BUDGET},
            "all weights are resident": {"budget": 8 * MIB, "pool": pool},
            "no resident weights can give way": {"budget": 3 * MIB // 2, "pool": pool},
        }.items():
            with WeightManager(device, GROUPS, addresses, **options) as manager:
                assert manager.fixed_because is not None and expected in manager.fixed_because
                assert manager.giving_way() is None
        assert pool.stats().allocation_count == 0


def test_preferred_groups_never_give_way(device: Device, pool: Pool) -> None:
    with offloaded(device, pool, prefer=[0, 5]) as model:
        assert model.manager.layout.resident[0] and model.manager.layout.resident[5]
        with pytest.raises(OutOfMemoryError):
            pool.malloc(LIMIT + 1, None)  # more than it may ever have: nobody is asked
        assert away(model.manager) == 0
        for number in (0, 5):
            assert not model.manager.gives_way(GROUPS[number].layer, GROUPS[number].name)


def test_no_memory_for_residents_is_an_error_and_leaves_nothing(
    device: Device, pool: Pool, stream: Stream
) -> None:
    block = pool.malloc(5 * MIB, stream)
    with sources(device, GROUPS) as (addresses, _), pytest.raises(OutOfMemoryError):
        WeightManager(device, GROUPS, addresses, budget=BUDGET, pool=pool)
    assert pool.stats().current_usage == 5 * MIB
    pool.free(block)


def test_bad_input(device: Device, pool: Pool) -> None:
    with sources(device, GROUPS) as (addresses, _):
        message = r"pool is 3; it may be None, or a vramkit\.Pool"
        given: Any = 3
        with pytest.raises(TypeError, match=message):
            WeightManager(device, GROUPS, addresses, budget=BUDGET, pool=given)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=3, max_size=24),
    budget=st.integers(3, 400),
    leaves=st.data(),
)
def test_a_ring_that_is_planned_again_closes(
    sizes: list[int], budget: int, leaves: st.DataObject
) -> None:
    """Whatever gives way, groups that follow each other around the ring share no bytes, as many as
    fit into what the ring has less the gaps of one lap."""
    groups = [Group(layer, "all", nbytes * 512) for layer, nbytes in enumerate(sizes)]
    try:
        layout = plan_layout(groups, budget=budget * 512, granularity=512)
    except BudgetError:
        return
    can = that_give_way(layout, ())
    gone = leaves.draw(st.sets(st.sampled_from(can)) if can else st.just(set()))
    resident = [stays and n not in gone for n, stays in enumerate(layout.resident)]
    if not layout.ring_bytes:
        return
    again = lay_out_again(layout, resident)
    assert again.ring_bytes == layout.ring_bytes
    assert again.device_bytes == layout.device_bytes - sum(groups[n].nbytes for n in gone)
    streamed = [n for n, stays in enumerate(again.resident) if not stays]
    for one, two in zip(streamed, [*streamed[1:], streamed[0]], strict=True):
        if one != two and groups[one].nbytes + groups[two].nbytes <= layout.ring_bytes / 2:
            assert not again.share_bytes(one, two)
    assert lay_out_again(again, layout.resident).resident == layout.resident
