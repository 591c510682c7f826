"""Driver calls that fail: an error or a later success, never wrong bytes, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vramkit.driver import Device, DriverError, Simulator, Stream
from vramkit.weights import WeightManager

from .support import GRANULE, KIB, PROFILE, Loaded, layers, loaded, sources

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(profile=PROFILE)]

UNKNOWN = 999
RING = 4 * GRANULE
CALLS = ["cuMemcpyHtoDAsync", "cuEventRecord", "cuStreamWaitEvent"]


class Trials:
    """Calls are repeated until they succeed."""

    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
            except DriverError as error:
                assert error.code == UNKNOWN
                self.failed += 1
                assert self.failed < 50
            else:
                return


def run(model: Loaded, stream: Stream, trials: Trials) -> None:
    manager = model.manager
    manager.begin_pass()
    for number, group in enumerate(model.groups):
        name = (group.layer, group.name)
        trials(lambda name=name: manager.wait_group_ready(*name, compute_stream=stream))  # type: ignore[misc]
        model.read(number, stream)
        trials(lambda name=name: manager.release(*name))  # type: ignore[misc]


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("nth", [1, 2, 3, 8, 20, 50])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_a_pass_fails(
    device: Device, sim: Simulator, call: str, nth: int, times: int
) -> None:
    trials = Trials()
    with device.stream() as stream, loaded(device, layers(9), budget=RING, chunk=16 * KIB) as model:
        model.run(stream)
        sim.inject(call, nth=nth, times=times, code=UNKNOWN)
        for _ in range(3):
            run(model, stream, trials)
        sim.clear_faults()
        stats = model.manager.stats()
        assert trials.failed + stats.failed > 0
        for _ in range(2):
            model.run(stream)
        before = model.manager.stats()
        model.run(stream)
        after = model.manager.stats()
        assert (after.misses, after.off_order) == (before.misses, before.off_order)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize("priority", ["normal", "high"])
def test_a_prefetch_that_fails_says_so_and_the_use_tries_again(
    device: Device, sim: Simulator, call: str, nth: int, priority: str
) -> None:
    trials = Trials()
    with device.stream() as stream, loaded(device, layers(9), budget=RING, chunk=16 * KIB) as model:
        model.run(stream)
        sim.inject(call, nth=nth, code=UNKNOWN)
        for number in (9, 3, 11, 0, 7, 8):
            group = model.groups[number]
            trials(
                lambda group=group: model.manager.prefetch_group_async(  # type: ignore[misc]
                    group.layer, group.name, priority=priority
                )
            )
        # The stream that copies ahead is behind all uses already: it waits for nothing here.
        waits = call == "cuStreamWaitEvent"
        assert trials.failed == (0 if waits and priority == "normal" else 1)
        sim.clear_faults()
        model.run(stream, [8, 7, 0, 11, 3, 9])


def test_a_use_that_failed_is_the_same_step_when_it_is_tried_again(
    device: Device, sim: Simulator
) -> None:
    """Also where the group comes twice in a pass."""
    order = [0, 1, 2, 0, 9, 10, 0]
    with device.stream() as stream, loaded(device, layers(9), budget=RING) as model:
        for _ in range(3):
            model.run(stream, order)
        before = model.manager.stats()
        model.manager.begin_pass()
        for number in order:
            sim.inject("cuStreamWaitEvent", code=UNKNOWN)
            with pytest.raises(DriverError):
                model.use(number, stream)
            model.use(number, stream)
        assert model.manager.stats().off_order == before.off_order


def test_a_host_wait_that_fails(device: Device, sim: Simulator) -> None:
    with loaded(device, layers(9), budget=RING) as model:
        sim.inject("cuEventSynchronize", code=UNKNOWN)
        with pytest.raises(DriverError, match="cuEventSynchronize failed"):
            model.manager.ensure_group_on_gpu(0, "attn")
        model.manager.ensure_group_on_gpu(0, "attn")


@pytest.mark.parametrize(
    ("call", "nth"),
    [
        ("cuMemAlloc", 1),
        ("cuMemAddressReserve", 1),
        ("cuMemCreate", 1),
        ("cuMemMap", 1),
        ("cuMemMap", 2),
        ("cuMemSetAccess", 1),
        ("cuStreamCreateWithPriority", 1),
        ("cuStreamCreateWithPriority", 2),
        ("cuStreamGetId", 2),
        ("cuEventCreate", 1),
        ("cuEventCreate", 18),
        ("cuMemcpyHtoDAsync", 1),
        ("cuMemcpyHtoDAsync", 5),
        ("cuEventRecord", 3),
    ],
)
def test_a_manager_that_cannot_be_made_leaves_nothing(
    device: Device, sim: Simulator, call: str, nth: int
) -> None:
    groups = layers(9)
    with sources(device, groups) as (addresses, _):
        before = sim.live_objects()
        sim.inject(call, nth=nth, code=UNKNOWN)
        with pytest.raises(DriverError, match=f"{call}.* failed"):
            WeightManager(device, groups, addresses, budget=2 * RING, ring=RING)
        assert sim.live_objects() == before
        with WeightManager(device, groups, addresses, budget=2 * RING, ring=RING):
            pass


def test_no_memory_for_a_ring(device: Device, sim: Simulator) -> None:
    groups = layers(9)
    with sources(device, groups) as (addresses, _):
        sim.inject("cuMemCreate", code=2)
        with pytest.raises(MemoryError):
            WeightManager(device, groups, addresses, budget=RING)


def test_a_lost_device(device: Device, sim: Simulator) -> None:
    groups = layers(9)
    slab = device.alloc_pinned(1 << 20)
    manager = WeightManager(device, groups, [slab.address] * len(groups), budget=RING)
    stream = device.stream()
    with manager.using(0, "attn", compute_stream=stream):
        pass
    sim.lose_device()
    with pytest.raises(DriverError):
        manager.wait_group_ready(0, "ffn", compute_stream=stream)
    with pytest.raises(DriverError):
        manager.close()
    assert manager.closed
    sim.reset(PROFILE)


@pytest.mark.parametrize("nth", range(1, 13))
@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent", "cuEventCreate"])
def test_a_pass_with_a_failure_is_not_measured_wrongly(
    device: Device, sim: Simulator, call: str, nth: int
) -> None:
    """Measuring adds records: one that fails breaks no use, and the pass has no times."""
    trials = Trials()
    with device.stream() as stream, loaded(device, layers(3), budget=RING, timing=True) as model:
        manager = model.manager
        if call != "cuEventCreate":
            model.run(stream)  # which makes all events
        sim.inject(call, nth=nth, code=UNKNOWN)
        run(model, stream, trials)
        sim.clear_faults()
        manager.begin_pass()
        measured = manager.last_pass()
        if measured is not None:
            assert [each.group for each in measured.groups] == list(range(len(model.groups)))
            assert all(each.waited >= 0 and each.used > 0 for each in measured.groups)
        if call == "cuStreamWaitEvent" and trials.failed:
            assert measured is None
        model.run(stream)
        manager.begin_pass()
        again = manager.last_pass()
        assert again is not None
        assert [each.group for each in again.groups] == list(range(len(model.groups)))
