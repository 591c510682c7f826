"""The weight manager: bytes arrive, addresses stay, its words, and what it refuses."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pool.graphs import Graphs

from vramkit.driver import ClosedError, Device, Simulator
from vramkit.weights import BudgetError, Group, WeightManager

from .support import GRANULE, KIB, PROFILE, layers, loaded, sources

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(profile=PROFILE)]

RING = 4 * GRANULE  # of 256 KiB: two layers and a half


@pytest.mark.parametrize("chunk", [4 * KIB, 64 * KIB, 64 << 20])
@pytest.mark.parametrize("budget", [2 * GRANULE, RING, 3 * RING, 1 << 30])
def test_the_bytes_arrive(device: Device, budget: int, chunk: int) -> None:
    with (
        device.stream() as stream,
        loaded(device, layers(9), budget=budget, chunk=chunk) as model,
    ):
        for _ in range(3):
            model.run(stream)


def test_groups_of_unequal_and_odd_sizes(device: Device) -> None:
    sizes = [4, 100_000, 512, 516, 65_536, 130_000, 40, 90_004, 65_540]
    groups = [Group(layer, "all", nbytes) for layer, nbytes in enumerate(sizes)]
    with (
        device.stream() as stream,
        loaded(device, groups, budget=3 * GRANULE, ring=2 * GRANULE + 2, chunk=512) as model,
    ):
        for _ in range(3):
            model.run(stream)


def test_addresses_stay_and_lie_in_the_rings_first_mapping(device: Device) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        manager = model.manager
        before = [manager.address(group.layer, group.name) for group in model.groups]
        assert max(before) - min(before) < manager.layout.ring_bytes
        for _ in range(2):
            model.run(stream)
        assert [manager.address(group.layer, group.name) for group in model.groups] == before


def test_the_card_has_what_the_layout_says_and_nothing_else(device: Device) -> None:
    groups = layers(9)
    with sources(device, groups) as (addresses, _):
        free = device.memory_info().free
        with WeightManager(device, groups, addresses, budget=2 * RING, ring=RING) as manager:
            assert manager.layout.resident_bytes and manager.layout.ring_bytes
            assert free - device.memory_info().free <= 2 * RING
        assert device.memory_info().free == free


def test_two_streams_use_a_model_at_once(device: Device) -> None:
    with (
        device.stream() as one,
        device.stream() as two,
        loaded(device, layers(9), budget=RING) as model,
    ):
        for _ in range(2):
            model.manager.begin_pass()
            for number, group in enumerate(model.groups):
                with model.manager.using(group.layer, group.name, compute_stream=one):
                    model.use(number, two)
                    model.read(number, one)


def test_uses_on_two_streams_may_end_in_any_order(device: Device) -> None:
    """Each release is behind the work of its own stream."""
    groups = [Group(layer, "all", 2 * GRANULE) for layer in range(3)]
    with (
        device.stream() as one,
        device.stream() as two,
        loaded(device, groups, budget=2 * GRANULE) as model,
    ):
        manager = model.manager
        manager.wait_group_ready(0, "all", compute_stream=one)
        manager.wait_group_ready(0, "all", compute_stream=two)
        model.read(0, one)
        manager.release(0, "all", compute_stream=one)
        device.kernels.spin(1_000_000, stream=two)
        model.read(0, two)
        manager.release(0, "all", compute_stream=two)
        model.use(1, one)


def test_which_of_two_streams_releases_must_be_said(device: Device) -> None:
    with (
        device.stream() as one,
        device.stream() as two,
        loaded(device, layers(2), budget=RING) as model,
    ):
        manager = model.manager
        manager.wait_group_ready(0, "attn", compute_stream=one)
        manager.wait_group_ready(0, "attn", compute_stream=two)
        with pytest.raises(
            ValueError, match=r"several streams use group 0.attn: release\(\) needs"
        ):
            manager.release(0, "attn")
        manager.release(0, "attn", compute_stream=one)
        with pytest.raises(ValueError, match=r"group 0.attn is not in use on this stream"):
            manager.release(0, "attn", compute_stream=one)
        manager.release(0, "attn")


def test_threads_with_streams_of_their_own(device: Device) -> None:
    groups = layers(4)
    with loaded(device, groups, budget=1 << 20, ring=4 * GRANULE) as model:
        failures: list[BaseException] = []

        def work(order: list[int]) -> None:
            try:
                with device.stream() as stream:
                    for _ in range(5):
                        for number in order:
                            group = groups[number]
                            with model.manager.using(
                                group.layer, group.name, compute_stream=stream
                            ) as address:
                                device.kernels.sweep(address, 1, stream=stream)
            except BaseException as error:
                failures.append(error)

        resident = [n for n, stays in enumerate(model.manager.layout.resident) if stays]
        assert len(resident) == len(groups)
        # Each has groups of its own: the sweeps write.
        threads = [threading.Thread(target=work, args=(resident[n::3],)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


# Its words


def test_a_prefetched_group_is_no_miss(device: Device) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        manager = model.manager
        manager.prefetch_group_async(5, "ffn")
        manager.prefetch_group_async(5, "ffn")
        assert manager.on_its_way(5, "ffn")
        model.use(11, stream)
        stats = manager.stats()
        assert (stats.misses, stats.off_order) == (0, 1)
        assert stats.copied_bytes >= 60 * KIB


def test_a_miss_is_served_at_once_and_what_follows_it_is_copied(device: Device) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        manager = model.manager
        model.use(11, stream)
        assert (manager.stats().misses, manager.stats().off_order) == (1, 1)
        assert manager.on_its_way(6, "attn") and manager.on_its_way(6, "ffn")


def test_high_priority_overtakes_between_two_chunks(device: Device, sim: Simulator) -> None:
    groups = [Group(0, "big", 4 << 20), Group(1, "small", 64 * KIB), Group(2, "rest", 8 << 20)]
    arrivals = {}
    for priority in ("normal", "high"):
        with loaded(device, groups, budget=9 << 20, chunk=256 * KIB) as model:
            manager = model.manager
            assert not manager.layout.share_bytes(0, 1)
            manager.log_copies()
            manager.prefetch_group_async(0, "big")
            begun = sim.now()
            manager.prefetch_group_async(1, "small", priority=priority)  # type: ignore[arg-type]
            manager.ensure_group_on_gpu(1, "small")
            arrivals[priority] = sim.now() - begun
            (_, first), (_, second) = manager.log_copies(False)
            assert (first == second) is (priority == "normal")
    # Behind 16 chunks of 4.7 us, or behind one.
    assert arrivals["normal"] > 70e-6
    assert arrivals["high"] < 10e-6


def test_a_pinned_group_is_not_overwritten_until_release(device: Device) -> None:
    groups = [Group(layer, "all", 2 * GRANULE) for layer in range(6)]
    with device.stream() as stream, loaded(device, groups, budget=RING) as model:
        manager = model.manager
        manager.prefetch_group_async(0, "all", pin=True)
        model.run(stream, [1, 3, 5])  # beside it
        assert manager.on_its_way(0, "all")
        with pytest.raises(ValueError, match=r"group 2.all needs memory that the pinned group 0.a"):
            manager.prefetch_group_async(2, "all")
        with pytest.raises(ValueError, match=r"group 0.all is pinned: release it before it is ev"):
            manager.evict(0, "all")
        model.use(0, stream)  # its release ends the pin
        manager.prefetch_group_async(2, "all", pin=True)
        assert not manager.on_its_way(0, "all")
        manager.release(2, "all")  # never used
        model.use(4, stream)


def test_a_pin_that_fails_pins_nothing(device: Device) -> None:
    groups = [Group(layer, "all", 2 * GRANULE) for layer in range(3)]
    with device.stream() as stream, loaded(device, groups, budget=2 * GRANULE) as model:
        manager = model.manager
        with manager.using(0, "all", compute_stream=stream):
            with pytest.raises(ValueError, match=r"needs memory that is in use by group 0.all"):
                manager.prefetch_group_async(1, "all", pin=True)
            with pytest.raises(TypeError, match="pin is 1; it may be True or False"):
                manager.prefetch_group_async(1, "all", pin=1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"group 1.all is not in use"):
            manager.release(1, "all")
        model.run(stream)


def test_ensure_waits_on_the_host_and_for_this_group_alone(device: Device, sim: Simulator) -> None:
    with loaded(device, layers(9), budget=RING) as model:
        manager = model.manager
        manager.prefetch_group_async(0, "attn")
        begun = sim.now()
        sim.reset_call_counts()
        manager.ensure_group_on_gpu(0, "attn")
        assert sim.now() - begun == pytest.approx(40 * KIB / 55.4e9, rel=2.5e-1, abs=5e-6)
        assert sim.call_counts()["cuEventSynchronize"] == 1
        assert manager.stats().misses == 0
        manager.ensure_group_on_gpu(3, "ffn")
        assert manager.on_its_way(3, "ffn")
        assert manager.stats().misses == 1


def test_an_evicted_group_is_copied_again(device: Device) -> None:
    with device.stream() as stream, loaded(device, layers(2), budget=1 << 20) as model:
        manager = model.manager
        assert all(manager.layout.resident)
        model.run(stream)
        manager.evict(1, "attn")
        assert not manager.on_its_way(1, "attn")
        copies = manager.stats().copies
        model.run(stream)
        assert (manager.stats().copies - copies, manager.stats().misses) == (1, 1)


def test_what_the_manager_says(device: Device) -> None:
    with loaded(device, layers(9), budget=RING) as model:
        manager = model.manager
        assert repr(manager).startswith("<WeightManager of 18 groups on <Device 0: ")
        assert not manager.closed
        assert manager.schedule.order == tuple(range(18))
    assert manager.closed
    assert repr(manager).endswith(", closed>")


# Misses of a policy that blocks


def test_a_group_that_the_host_had_to_wait_for_is_a_miss(device: Device) -> None:
    """As many as without blocking."""
    misses = {}
    for policy in ("history", "block_shallow"):
        with (
            device.stream() as stream,
            loaded(device, layers(9), budget=6 * GRANULE, policy=policy) as model,
        ):
            for _ in range(2):
                model.run(stream)
            misses[policy] = model.manager.stats().misses
    assert misses["history"] == misses["block_shallow"] > 0


# Errors


@pytest.mark.parametrize(
    ("layer", "group", "message"),
    [
        (9, "attn", "there is no layer 9; layers are 0 to 8"),
        (-1, "attn", "there is no layer -1"),
        (3, "mlp", "layer 3 has no group 'mlp'; it has 'attn', 'ffn'"),
    ],
)
def test_groups_that_do_not_exist(device: Device, layer: int, group: str, message: str) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        manager = model.manager
        for call in (
            lambda: manager.prefetch_group_async(layer, group),
            lambda: manager.wait_group_ready(layer, group, compute_stream=stream),
            lambda: manager.release(layer, group),
            lambda: manager.ensure_group_on_gpu(layer, group),
            lambda: manager.evict(layer, group),
            lambda: manager.address(layer, group),
            lambda: manager.on_its_way(layer, group),
        ):
            with pytest.raises(KeyError, match=message):
                call()


def test_released_twice_or_never_used(device: Device) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        with pytest.raises(ValueError, match=r"group 0.attn is not in use"):
            model.manager.release(0, "attn")
        model.use(0, stream)
        with pytest.raises(ValueError, match=r"group 0.attn is not in use"):
            model.manager.release(0, "attn")


def test_evicted_while_in_use(device: Device) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        with model.manager.using(0, "attn", compute_stream=stream):
            with pytest.raises(ValueError, match=r"group 0.attn is in use: release it before"):
                model.manager.evict(0, "attn")
            model.read(0, stream)
        model.manager.evict(0, "attn")


def test_two_groups_at_once_in_a_ring_for_one(device: Device) -> None:
    groups = [Group(layer, "all", 2 * GRANULE) for layer in range(3)]
    with device.stream() as stream, loaded(device, groups, budget=2 * GRANULE) as model:
        manager = model.manager
        with manager.using(0, "all", compute_stream=stream):
            with pytest.raises(
                ValueError,
                match=r"group 1.all needs memory that is in use by group 0.all: release that fi",
            ):
                manager.wait_group_ready(1, "all", compute_stream=stream)
            model.read(0, stream)
        model.use(1, stream)


def test_a_closed_stream(device: Device) -> None:
    with loaded(device, layers(9), budget=RING) as model:
        stream = device.stream()
        stream.close()
        with pytest.raises(ClosedError):
            model.manager.wait_group_ready(0, "attn", compute_stream=stream)
        with pytest.raises(ValueError, match="is not in use"):
            model.manager.release(0, "attn")


def test_a_stream_that_is_closed_while_it_uses_a_group(device: Device) -> None:
    """The group cannot be released, and close() waits for the work all the same."""
    with loaded(device, layers(9), budget=RING) as model:
        stream = device.stream()
        model.manager.wait_group_ready(0, "attn", compute_stream=stream)
        device.kernels.spin(1_000_000, stream=stream)
        model.read(0, stream)
        stream.close()
        with pytest.raises(ClosedError):
            model.manager.release(0, "attn")


@pytest.mark.parametrize("stream", [None, 7, "stream"])
def test_things_that_are_no_streams(device: Device, stream: Any) -> None:
    with (
        loaded(device, layers(2), budget=RING) as model,
        pytest.raises(TypeError),
    ):
        model.manager.wait_group_ready(0, "attn", compute_stream=stream)


def test_a_bad_priority(device: Device) -> None:
    with (
        loaded(device, layers(2), budget=RING) as model,
        pytest.raises(ValueError, match="priority is 'urgent'; it may be 'normal' or 'high'"),
    ):
        model.manager.prefetch_group_async(0, "attn", priority="urgent")  # type: ignore[arg-type]


def test_a_closed_manager(device: Device) -> None:
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        model.run(stream)
        model.verify()
        manager = model.manager
        stats = manager.stats()
        manager.close()
        manager.close()
        assert manager.stats() == stats
        for call in (
            manager.begin_pass,
            lambda: manager.prefetch_group_async(0, "attn"),
            lambda: manager.wait_group_ready(0, "attn", compute_stream=stream),
            lambda: manager.release(0, "attn"),
            lambda: manager.ensure_group_on_gpu(0, "attn"),
            lambda: manager.evict(0, "attn"),
            lambda: manager.on_its_way(0, "attn"),
            manager.log_copies,
        ):
            with pytest.raises(ClosedError, match="this WeightManager is closed"):
                call()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"chunk": 0}, ValueError, "chunk is 0; it may be a multiple of 512 bytes"),
        ({"chunk": 1000}, ValueError, "chunk is 1000; it may be a multiple of 512 bytes"),
        ({"chunk": -512}, ValueError, "chunk is -512"),
        ({"chunk": "64MiB"}, TypeError, "chunk is '64MiB'; it may be an integer"),
        ({"budget": -1}, ValueError, "budget is -1"),
        ({"budget": "24GiB"}, TypeError, "budget is '24GiB'"),
        ({"budget": 1000}, BudgetError, "budget is 1000 B, too little for these weights"),
        ({"ring": "1MiB"}, TypeError, "ring is '1MiB'; it may be None, or an integer"),
        ({"ring": 1000}, BudgetError, "ring is 1000 B, too little for these weights"),
        ({"policy": "fast"}, ValueError, "policy is 'fast'; it may be a Policy, or auto, history1"),
        ({"policy": "stage1"}, BudgetError, "with this depth 500 KiB must be on the card at once"),
        ({"policy": "history", "ring": RING}, ValueError, "ring has no effect with a depth"),
    ],
)
def test_arguments_that_cannot_be(
    device: Device, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    groups = layers(9)
    with sources(device, groups) as (addresses, _), pytest.raises(error, match=message):
        WeightManager(device, groups, addresses, **{"budget": RING, **options})


def test_sources_that_do_not_match(device: Device) -> None:
    with pytest.raises(ValueError, match="there are 2 groups and 1 sources"):
        WeightManager(device, layers(1), [4096], budget=RING)
    with pytest.raises(ValueError, match=r"two groups have the same layer and name: 0.attn"):
        WeightManager(device, [*layers(1), *layers(1)], [4096] * 4, budget=RING)
    with pytest.raises(ValueError, match="there are no groups of weights"):
        WeightManager(device, [], [], budget=RING)


def test_a_captured_stream(device: Device) -> None:
    with (
        device.stream() as stream,
        device.stream() as other,
        loaded(device, layers(9), budget=RING) as model,
    ):
        model.use(0, stream)
        graphs = Graphs(device.driver)
        with graphs.capture(stream):
            with pytest.raises(ValueError, match="the stream is being captured: streamed weights"):
                model.manager.wait_group_ready(0, "attn", compute_stream=stream)
            # Other calls break no capture.
            model.manager.prefetch_group_async(1, "attn")
            model.use(5, other)
        graphs.close()
        model.run(stream)
