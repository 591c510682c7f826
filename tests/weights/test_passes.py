"""Times of whole passes, exact on the virtual clock of the simulated GPU.

A study of weight streaming: 80 layers, attn 80 ms and ffn 120 ms, groups of 100 and 150 MB over a
link of 5 GB/s, and 2 ms of host time a layer where a policy blocks. And layers of a 70B model on an
H200, against the bound: the larger of the compute and of the streamed bytes over the link.
"""

from __future__ import annotations

from typing import Literal

import pytest

from vramkit.driver import Device, Simulator
from vramkit.weights import POLICIES, Group, WeightManager
from vramkit.weights.passes import Host, PassTime, run_passes

pytestmark = [pytest.mark.sim_only]

MB = 10**6
GB = 10**9

LAYERS = 80
ATTN, FFN = 0.080, 0.120
ENSURE = 0.002
COMPUTE = LAYERS * (ATTN + FFN)
COLD = 100 * MB / 5e9  # the first attn, for which nothing can be done before

# Milliseconds of the first and of every later pass. The last three milliseconds at most are host
# calls and latencies: they are here so that a change in them is noticed.
TIMES: dict[tuple[str, Host, Literal[1, 2]], tuple[float, float]] = {
    ("auto", "ahead", 1): (16020.252, 16000.249),
    ("auto", "ahead", 2): (16020.271, 16000.268),
    ("auto", "layer", 1): (16020.577, 16000.574),
    ("auto", "layer", 2): (16020.698, 16000.695),
    ("auto", "group", 1): (16020.916, 16000.913),
    ("auto", "group", 2): (16021.176, 16001.173),
    ("history1", "ahead", 1): (16022.771, 16002.251),
    ("history1", "ahead", 2): (16022.790, 16002.270),
    ("history1", "layer", 1): (16181.649, 16161.129),
    ("history1", "layer", 2): (16181.770, 16161.250),
    ("history1", "group", 1): (16212.546, 16162.027),
    ("history1", "group", 2): (16212.806, 16162.287),
    ("history", "ahead", 1): (16020.252, 16000.249),
    ("history", "ahead", 2): (16020.271, 16000.268),
    ("history", "layer", 1): (16020.582, 16000.579),
    ("history", "layer", 2): (16020.703, 16000.700),
    ("history", "group", 1): (18421.379, 18401.376),
    ("history", "group", 2): (18421.639, 18401.636),
    ("stage1", "ahead", 1): (16020.252, 16000.253),
    ("stage1", "ahead", 2): (16020.271, 16000.272),
    ("stage1", "layer", 1): (16020.961, 16000.962),
    ("stage1", "layer", 2): (16021.082, 16001.084),
    ("stage1", "group", 1): (16051.872, 16001.861),
    ("stage1", "group", 2): (16052.130, 16002.121),
    ("stage2", "ahead", 1): (16020.252, 16000.253),
    ("stage2", "ahead", 2): (16020.271, 16000.272),
    ("stage2", "layer", 1): (16020.961, 16000.962),
    ("stage2", "layer", 2): (16021.082, 16001.084),
    ("stage2", "group", 1): (16021.879, 16001.861),
    ("stage2", "group", 2): (16022.139, 16002.121),
    ("first_step", "ahead", 1): (16022.778, 16002.251),
    ("first_step", "ahead", 2): (16022.797, 16002.270),
    ("first_step", "layer", 1): (16181.656, 16161.129),
    ("first_step", "layer", 2): (16181.777, 16161.250),
    ("first_step", "group", 1): (16182.574, 16162.027),
    ("first_step", "group", 2): (16182.834, 16162.287),
    ("block_shallow", "ahead", 1): (16022.753, 16002.246),
    ("block_shallow", "ahead", 2): (16022.772, 16002.265),
    ("block_shallow", "layer", 1): (16181.252, 16160.745),
    ("block_shallow", "layer", 2): (16181.373, 16160.867),
    ("block_shallow", "group", 1): (18582.049, 18561.542),
    ("block_shallow", "group", 2): (18582.309, 18561.803),
}


def study(device: Device, policy: str, host: Host, streams: Literal[1, 2]) -> list[PassTime]:
    """Three passes, in a ring without residents beside it."""
    sizes = (("attn", 100 * MB), ("ffn", 150 * MB))
    groups = [Group(layer, name, nbytes) for layer in range(LAYERS) for name, nbytes in sizes]
    budget = (1256 if POLICIES[policy].depth == 4 else 504) * MB
    with (
        device.alloc_pinned(150 * MB) as weights,
        WeightManager(
            device, groups, [weights.address] * len(groups), budget=budget, policy=policy
        ) as manager,
    ):
        assert not any(manager.layout.resident)
        return run_passes(
            manager,
            [ATTN, FFN] * LAYERS,
            passes=3,
            ensure_cost=ENSURE,
            host=host,
            streams=streams,
        )


@pytest.mark.sim(profile="weight-streaming", data=False)
@pytest.mark.parametrize(("policy", "host", "streams"), TIMES)
def test_times_of_the_study(
    device: Device, policy: str, host: Host, streams: Literal[1, 2]
) -> None:
    cold, steady, again = study(device, policy, host, streams)
    assert (1e3 * cold.wall, 1e3 * steady.wall) == pytest.approx(
        TIMES[policy, host, streams], abs=1e-3
    )
    assert again.wall == pytest.approx(steady.wall, abs=1e-9)
    assert steady.copied_bytes == LAYERS * 250 * MB
    assert steady.computed == pytest.approx(COMPUTE)
    assert steady.stalled == pytest.approx(steady.wall - COMPUTE)
    # Half of the groups are copied on demand where only attn is copied ahead.
    assert steady.misses == (LAYERS if POLICIES[policy].depth == 1 else 0)


def expected(policy: str, host: Host) -> tuple[float, float]:
    """The first and the later passes from the figures of the study."""
    steady = COMPUTE
    if POLICIES[policy].wait == "block":
        # The host is ahead by the cost of one layer, or behind by that of each.
        steady += ENSURE * (1 if host == "ahead" else LAYERS)
    if POLICIES[policy].depth == 1 and host == "group":
        steady += LAYERS * 150 * MB / 5e9  # each ffn is copied when attn is over
    cold = steady + COLD
    if policy in ("stage1", "history1") and host == "group":
        cold += 150 * MB / 5e9  # the first ffn, which nobody asked for before
    return cold, steady


@pytest.mark.parametrize(("policy", "host", "streams"), TIMES)
def test_the_times_are_those_of_the_arithmetic(
    policy: str, host: Host, streams: Literal[1, 2]
) -> None:
    given = tuple(1e-3 * each for each in TIMES[policy, host, streams])
    assert given == pytest.approx(expected(policy, host), abs=3e-3)


# The bound on an H200

LAYER = 1_711_000_000
LINK = 55.4e9


@pytest.mark.sim(profile="h200", data=False)
@pytest.mark.parametrize("parts", [{"all": 1.0}, {"attn": 0.176, "ffn": 0.824}], ids=" ".join)
@pytest.mark.parametrize("streamed", [12, 11, 7, 5])
@pytest.mark.parametrize("compute", [9.7e-3, 144.7e-3], ids=["one token", "4096 tokens"])
def test_a_steady_pass_takes_no_longer_than_the_bound(
    device: Device, sim: Simulator, parts: dict[str, float], streamed: int, compute: float
) -> None:
    """With a ring of two layers, also where the layers do not divide by two."""
    groups = [
        Group(layer, name, int(LAYER * part)) for layer in range(12) for name, part in parts.items()
    ]
    ring = whole_granules(device, 2 * LAYER)
    budget = ring + whole_granules(device, (12 - streamed) * LAYER)
    with (
        device.alloc_pinned(LAYER) as weights,
        WeightManager(
            device, groups, [weights.address] * len(groups), budget=budget, ring=ring
        ) as manager,
    ):
        layout = manager.layout
        assert layout.streamed_bytes == pytest.approx(streamed * LAYER, abs=0.18 * LAYER)
        seconds = [compute * group.nbytes / (12 * LAYER) for group in groups]
        _, _, steady = run_passes(manager, seconds, passes=3)
        assert steady.copied_bytes == layout.streamed_bytes
        assert steady.misses == 0
        assert steady.wall <= 1.003 * max(compute, layout.streamed_bytes / LINK)


@pytest.mark.sim(profile="h200", data=False)
def test_a_pass_with_more_compute_than_copies_is_as_fast_as_a_resident_one(device: Device) -> None:
    groups = [Group(layer, "all", LAYER) for layer in range(12)]
    walls = []
    for budget in (whole_granules(device, 2 * LAYER), 14 * LAYER):
        with (
            device.alloc_pinned(LAYER) as weights,
            WeightManager(device, groups, [weights.address] * 12, budget=budget) as manager,
        ):
            walls.append(run_passes(manager, [0.667 / 12] * 12, passes=2)[1].wall)
    streamed, resident = walls
    assert streamed <= 1.001 * resident


def whole_granules(device: Device, nbytes: int) -> int:
    return -(-nbytes // device.granularity) * device.granularity


# What run_passes() takes


@pytest.mark.sim(profile="h200", data=False)
def test_something_beside_each_group(device: Device) -> None:
    groups = [Group(layer, "all", LAYER) for layer in range(3)]
    seen: list[int] = []
    with (
        device.alloc_pinned(LAYER) as weights,
        WeightManager(device, groups, [weights.address] * 3, budget=4 * GB) as manager,
    ):
        run_passes(manager, [0.001] * 3, passes=2, beside=seen.append)
        assert seen == [0, 1, 2, 0, 1, 2]
        with pytest.raises(ValueError, match="there are 3 groups and 2 compute times"):
            run_passes(manager, [0.001] * 2)
        with pytest.raises(ValueError, match="streams is 3; it may be 1 or 2"):
            run_passes(manager, [0.001] * 3, streams=3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="host is 'behind'; it may be 'ahead', 'layer' or 'gr"):
            run_passes(manager, [0.001] * 3, host="behind")  # type: ignore[arg-type]
