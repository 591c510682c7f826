"""A pass that goes as scheduled: its copies are those of the schedule, and the host waits for
nothing, allocates nothing and makes no events or streams."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from vramkit.driver import Device, Simulator, Stream
from vramkit.weights import POLICIES

from .support import GRANULE, KIB, PROFILE, Loaded, layers, loaded

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(profile=PROFILE)]

LAYERS = 10
COUNT = 2 * LAYERS
CHUNK = 16 * KIB
CHUNKS = LAYERS * (3 + 4)  # of 40 and of 60 KiB

# Around each call: the context is current, and captures of other threads do not break.
SCOPES = {"cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode"}

BUDGETS = {None: 4 * GRANULE, 1: 4 * GRANULE, 4: 8 * GRANULE}  # by depth


def steady(device: Device, stream: Stream, policy: str, **options: Any) -> Any:
    budget = BUDGETS[POLICIES[policy].depth]
    return loaded(
        device, layers(LAYERS), **{"budget": budget, "policy": policy, "chunk": CHUNK, **options}
    )


def calls_of_a_pass(model: Loaded, sim: Simulator, stream: Stream) -> Counter[str]:
    for _ in range(2):
        model.run(stream)
    sim.reset_call_counts()
    model.run(stream)
    counts = Counter(sim.call_counts())
    return Counter({call: n for call, n in counts.items() if n and call not in SCOPES})


@pytest.mark.parametrize("policy", ["auto", "stage1", "stage2"])
def test_calls_of_a_pass(device: Device, sim: Simulator, policy: str) -> None:
    with device.stream() as stream, steady(device, stream, policy) as model:
        assert calls_of_a_pass(model, sim, stream) == {
            "cuMemcpyHtoDAsync_v2": CHUNKS,
            "cuEventRecord": 2 * COUNT,  # behind each copy, and behind each use
            "cuStreamWaitEvent": 2 * COUNT,  # for each copy, and for what it overwrites
            "cuLaunchKernel": COUNT,
        }


def test_calls_of_a_pass_that_copies_half_on_demand(device: Device, sim: Simulator) -> None:
    with device.stream() as stream, steady(device, stream, "history") as model:
        assert calls_of_a_pass(model, sim, stream) == {
            "cuMemcpyHtoDAsync_v2": CHUNKS,
            "cuEventRecord": 2 * COUNT,
            # What is copied on demand goes before what is copied ahead.
            "cuStreamWaitEvent": 2 * COUNT + LAYERS,
            "cuLaunchKernel": COUNT,
        }


@pytest.mark.parametrize(
    ("policy", "waits"), [("history1", 0), ("first_step", 0), ("block_shallow", LAYERS)]
)
def test_calls_of_a_pass_that_blocks(
    device: Device, sim: Simulator, policy: str, waits: int
) -> None:
    with device.stream() as stream, steady(device, stream, policy) as model:
        assert calls_of_a_pass(model, sim, stream) == {
            "cuMemcpyHtoDAsync_v2": CHUNKS,
            "cuEventRecord": 2 * COUNT,
            "cuStreamWaitEvent": 2 * COUNT + waits,
            "cuLaunchKernel": COUNT,
            "cuEventSynchronize": LAYERS,  # once a layer
        }


def test_residents_are_not_copied_again(device: Device, sim: Simulator) -> None:
    with (
        device.stream() as stream,
        steady(device, stream, "auto", budget=10 * GRANULE, ring=4 * GRANULE) as model,
    ):
        streamed = [
            group
            for group, resident in zip(model.groups, model.manager.layout.resident, strict=True)
            if not resident
        ]
        assert 0 < len(streamed) < COUNT
        assert calls_of_a_pass(model, sim, stream) == {
            "cuMemcpyHtoDAsync_v2": sum(-(-group.nbytes // CHUNK) for group in streamed),
            "cuEventRecord": COUNT + len(streamed),
            "cuStreamWaitEvent": COUNT + len(streamed),
            "cuLaunchKernel": COUNT,
        }


def test_nothing_is_copied_where_all_is_resident(device: Device, sim: Simulator) -> None:
    with device.stream() as stream, steady(device, stream, "auto", budget=1 << 24) as model:
        assert calls_of_a_pass(model, sim, stream) == {
            "cuEventRecord": COUNT,
            "cuStreamWaitEvent": COUNT,
            "cuLaunchKernel": COUNT,
        }
        assert model.manager.stats().copies == COUNT


def test_a_pass_on_two_streams(device: Device, sim: Simulator) -> None:
    with (
        device.stream() as attn,
        device.stream() as ffn,
        steady(device, attn, "auto") as model,
    ):
        for turn in range(3):
            if turn == 2:
                sim.reset_call_counts()
            model.manager.begin_pass()
            for number in range(COUNT):
                model.use(number, ffn if number % 2 else attn)
        counts = sim.call_counts()
        assert counts["cuMemcpyHtoDAsync_v2"] == CHUNKS
        assert counts["cuEventRecord"] == counts["cuStreamWaitEvent"] == 2 * COUNT


def test_passes_on_ever_new_streams_make_no_more_events(device: Device, sim: Simulator) -> None:
    """Neither for groups in the ring nor for residents."""
    with device.stream() as first, steady(device, first, "auto", budget=10 * GRANULE) as model:
        model.run(first)
        device.synchronize()
        events = sim.live_objects()["events"]
        for _ in range(20):
            with device.stream() as stream:
                model.run(stream)
                stream.synchronize()
        assert sim.live_objects()["events"] == events


@pytest.mark.parametrize("policy", POLICIES)
def test_copies_are_those_of_the_schedule_in_their_order(device: Device, policy: str) -> None:
    with device.stream() as stream, steady(device, stream, policy) as model:
        manager = model.manager
        for _ in range(2):
            model.run(stream)
        before = manager.stats()
        assert manager.log_copies() == []
        model.run(stream)
        log, after = manager.log_copies(False), manager.stats()
        ahead, urgent = manager._engine.stream_ids
        copies = [model.groups[copy.group] for copy in manager.schedule.copies()]
        assert [group for group, copied_on in log if copied_on == ahead] == copies
        on_demand = [group for group, copied_on in log if copied_on == urgent]
        assert len(on_demand) == after.misses - before.misses
        assert Counter(group for group, _ in log) == Counter(model.groups)
        assert after.copies - before.copies == COUNT
        assert after.copied_bytes - before.copied_bytes == sum(g.nbytes for g in model.groups)
        assert (after.off_order, after.left_out, after.failed) == (0, 0, 0)
        model.run(stream)
        assert manager.log_copies() == []
