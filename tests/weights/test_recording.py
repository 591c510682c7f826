"""What ran when in a pass: spans named by group, lanes for the report, a Chrome trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from vramkit.driver import Device, Driver, Stream
from vramkit.driver.timeline import moved
from vramkit.report.units import bytes_text, time_text
from vramkit.weights import Group, WeightManager, recording
from vramkit.weights.passes import run_passes
from vramkit.weights.recording import NOT_SEEN, measured_pass, record_passes

pytestmark = [
    pytest.mark.sim_only,
    pytest.mark.sim(profile="weight-streaming", data=False, checker=False),
]

MB = 1_000_000
GROUPS = [
    Group(layer, *part) for layer in range(6) for part in (("attn", 100 * MB), ("ffn", 150 * MB))
]
SECONDS = [0.080, 0.120] * 6
TWO_LAYERS = 502 * MB


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.fixture
def source(device: Device) -> Iterator[int]:
    with device.alloc_pinned(150 * MB) as memory:
        yield memory.address


def manager(device: Device, source: int, policy: str = "auto") -> WeightManager:
    sources = [source] * len(GROUPS)
    return WeightManager(device, GROUPS, sources, budget=TWO_LAYERS, policy=policy)


def test_every_copy_and_every_kernel_has_the_name_of_its_group(device: Device, source: int) -> None:
    with manager(device, source) as weights:
        cold, steady = record_passes(weights, SECONDS, passes=2)
    for recorded in (cold, steady):
        for name in ("attn", "ffn"):
            assert [span.name for span in recorded.lane(name)] == [
                f"compute {layer}.{name}" for layer in range(6)
            ]
    # 100 MB are two chunks of at most 64 MiB, 150 MB are three. The last are for the next pass.
    expected = [
        f"copy {group}" for group in GROUPS for _ in range(2 if group.name == "attn" else 3)
    ]
    cold_names = [span.name for span in cold.lane("copy")]
    assert cold_names[: len(expected)] == expected
    assert cold_names[len(expected) :] == expected[: len(cold_names) - len(expected)]
    assert sum(span.nbytes for span in steady.lane("copy")) == pytest.approx(6 * 250 * MB, rel=1e-5)


def test_a_copy_ends_before_its_group_computes(device: Device, source: int) -> None:
    with manager(device, source, "history") as weights:
        (cold,) = record_passes(weights, SECONDS, passes=1, host="group")
    for group in GROUPS:
        (work,) = (span for span in cold.spans if span.name == f"compute {group}")
        copies = [span for span in cold.lane("copy") if span.name == f"copy {group}"]
        for_this_pass = [copy for copy in copies if copy.start < work.end]
        assert sum(copy.nbytes for copy in for_this_pass) == group.nbytes
        assert max(copy.end for copy in for_this_pass) <= work.start
    # 30 ms for 150 MB on demand, while nothing computes; 20 ms for the first attention.
    assert cold.time.stalled == pytest.approx(6 * 0.030 + 0.020, abs=0.001)


@pytest.mark.parametrize("streams", [1, 2])
def test_bytes_are_counted_by_what_computed_meanwhile(
    device: Device, source: int, streams: int
) -> None:
    with manager(device, source, "history") as weights:
        _, steady = record_passes(weights, SECONDS, passes=2, host="group", streams=streams)  # type: ignore[arg-type]
    assert steady.copied_beside() == {"attn": 0, "ffn": 6 * 100 * MB}


def test_the_host_has_a_lane_where_it_was_blocked(device: Device, source: int) -> None:
    with manager(device, source, "block_shallow") as weights:
        _, steady = record_passes(weights, SECONDS, passes=2, host="layer", ensure_cost=0.002)
    blocked = steady.lane("CPU")
    assert [span.name for span in blocked] == [f"ensure {layer}.attn" for layer in range(6)]
    assert sum(span.end - span.start for span in blocked) == pytest.approx(steady.time.host_blocked)
    assert steady.time.host_blocked == pytest.approx(6 * 0.002, abs=0.0005)
    assert len(steady.lane("in step")) == 5
    # Each is over before the work of its layer begins.
    for wait, work in zip(blocked, steady.lane("attn"), strict=True):
        assert wait.end <= work.start


def test_the_block_has_the_lanes_in_order_and_a_bar_a_group(device: Device, source: int) -> None:
    with manager(device, source) as weights:
        _, steady = record_passes(weights, SECONDS, passes=2)
    drawn = steady.timeline("A pass")
    assert [lane.name for lane in drawn.lanes] == ["copy", "attn", "ffn"]
    assert drawn.scale == steady.time.wall and drawn.caption == ""
    assert [span.kind for lane in drawn.lanes for span in lane.spans[:1]] == [
        "copy_in",
        "kernel",
        "kernel",
    ]
    part = steady.timeline("Two layers", layers=range(2, 4))
    assert part.scale == pytest.approx(0.4, abs=0.001)
    assert [span.name for span in part.lanes[1].spans] == ["compute 2.attn", "compute 3.attn"]
    with pytest.raises(ValueError, match=r"layers is range\(6, 8\); none of them"):
        steady.timeline("None", layers=range(6, 8))


def test_what_another_program_copies_is_beside(device: Device, source: int) -> None:
    with (
        device.stream() as other,
        device.alloc(100 * MB) as target,
        device.alloc_pinned(100 * MB) as pinned,
        manager(device, source) as weights,
    ):

        def beside(number: int) -> None:
            if number == 0:
                device.kernels.spin(1_000_000, stream=other)
                device.copy(target, pinned, stream=other)

        recorded = record_passes(weights, SECONDS, passes=2, beside=beside)
    assert [span.name for span in recorded[1].lane("attn")][:2] == [
        "compute 0.attn",
        "compute 1.attn",
    ]
    assert [len(each.lane("beside")) for each in recorded] == [2, 2]
    assert recorded[1].timeline("").lanes[-1].name == "beside"


def test_recording_changes_no_time(driver: Driver) -> None:
    assert driver.sim is not None
    walls = []
    for run in (run_passes, record_passes):
        driver.sim.reset("weight-streaming", data=False, checker=False)
        device = driver.device()
        with device.alloc_pinned(150 * MB) as memory, manager(device, memory.address) as weights:
            results = run(weights, SECONDS, passes=2)
            walls.append([getattr(each, "time", each).wall for each in results])
    assert walls[0] == pytest.approx(walls[1], rel=1e-12)


def test_the_trace_has_the_names_and_lanes(device: Device, source: int, tmp_path: Path) -> None:
    with manager(device, source, "block_shallow") as weights:
        (recorded,) = record_passes(weights, SECONDS, passes=1)
    recorded.save(tmp_path / "pass.json")
    events = json.loads((tmp_path / "pass.json").read_text("utf-8"))["traceEvents"]
    lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert lanes == {"CPU", "copy", "attn", "ffn"}
    assert {event["name"] for event in events if event["ph"] == "X"} >= {
        "ensure 0.attn",
        "copy 3.ffn",
        "compute 3.ffn",
    }


@pytest.mark.sim(profile="h200", clock="wall")
def test_a_card_shows_what_is_known(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a card: events around what Device issues, and real time."""
    groups = [Group(layer, name, 1 << 20) for layer in range(4) for name in ("attn", "ffn")]
    device = driver.device()
    with monkeypatch.context() as patch, device.alloc_pinned(1 << 20) as memory:
        patch.setattr(driver, "sim", None)
        sources = [memory.address] * len(groups)
        with WeightManager(
            device, groups, sources, budget=4 << 20, policy="block_shallow"
        ) as weights:
            _, recorded = record_passes(weights, [1e-4] * len(groups), passes=2)
        drawn = recorded.timeline("A card")
        assert [lane.name for lane in drawn.lanes] == ["CPU", "attn", "ffn"]
        assert [span.name for span in drawn.lanes[2].spans] == [
            f"compute {layer}.ffn" for layer in range(4)
        ]
        assert drawn.caption == NOT_SEEN
        assert recorded.copied_beside() == {"attn": 0, "ffn": 0}


@pytest.mark.parametrize("ahead", [1e-3, -1e-3])
def test_clocks_that_differ_a_little_move_no_work_to_another_pass(
    device: Device, source: int, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """The card's clock, of one that is set beside the host's."""
    monkeypatch.setattr(recording, "moved", lambda spans, seconds: moved(spans, seconds + ahead))
    with WeightManager(device, GROUPS, [source] * len(GROUPS), budget=TWO_LAYERS) as weights:
        for recorded in record_passes(weights, SECONDS, passes=2):
            for name in ("attn", "ffn"):
                spans = [span.name for span in recorded.lane(name)]
                assert spans == [f"compute {layer}.{name}" for layer in range(6)]


def _pass(weights: WeightManager, stream: Stream, times: Sequence[float] = SECONDS) -> None:
    weights.begin_pass()
    for group, seconds in zip(GROUPS, times, strict=True):
        with weights.using(group.layer, group.name, compute_stream=stream):
            weights.device.kernels.spin(round(seconds * 1e9), stream=stream)
    weights.begin_pass()


def test_a_pass_that_was_timed_by_events(device: Device, source: int, tmp_path: Path) -> None:
    sources = [source] * len(GROUPS)
    with (
        WeightManager(device, GROUPS, sources, budget=TWO_LAYERS, timing=True) as weights,
        device.stream() as stream,
    ):
        assert measured_pass(weights) is None
        for _ in range(3):
            _pass(weights, stream)
        found = measured_pass(weights)
        assert found is not None
        assert found.sees_copies
        assert found.time.wall == pytest.approx(6 * 0.2, rel=1e-3)
        assert found.time.copied_bytes == pytest.approx(6 * 250 * MB, rel=1e-2)
        for name, seconds in (("attn", 0.080), ("ffn", 0.120)):
            spans = found.lane(name)
            assert [span.name for span in spans] == [f"compute {n}.{name}" for n in range(6)]
            assert all(span.end - span.start == pytest.approx(seconds, abs=1e-4) for span in spans)
        # What is copied beside the work of one layer is what the next ones need.
        copies = {span.name: span for span in reversed(found.lane("copy"))}
        for layer in range(3, 6):
            assert copies[f"copy {layer}.ffn"].end < found.lane("ffn")[layer].start
        assert sum(found.copied_beside().values()) == pytest.approx(
            found.time.copied_bytes, rel=1e-3
        )
    assert "copy" in found.text() and "attn" in found.text()
    found.save_html(tmp_path / "pass.html", "Six layers")
    html = (tmp_path / "pass.html").read_text("utf-8")
    assert "Six layers" in html and "GPU idle" in html and "What travelled meanwhile" in html
    found.save(tmp_path / "pass.json")
    assert json.loads((tmp_path / "pass.json").read_text("utf-8"))["traceEvents"]


FAST = [0.005, 0.005] * 6
"""A layer's copies take 50 ms, and so a pass 300 ms."""


def timed(device: Device, source: int, policy: str) -> WeightManager:
    sources = [source] * len(GROUPS)
    return WeightManager(device, GROUPS, sources, budget=TWO_LAYERS, policy=policy, timing=True)


def test_a_host_that_blocks_is_seen_where_it_was_blocked(device: Device, source: int) -> None:
    """The host's clock and the card's are brought together: it goes on when a copy has ended."""
    with timed(device, source, "block_shallow") as weights, device.stream() as stream:
        for _ in range(3):
            _pass(weights, stream, FAST)
        before = weights.stats().misses
        _pass(weights, stream, FAST)
        found = measured_pass(weights)
        missed = weights.stats().misses - before
    assert found is not None
    time, blocked = found.time, found.lane("CPU")
    assert [span.name for span in blocked] == [f"ensure {layer}.attn" for layer in range(6)]
    # The host is ahead of the card: it waits for the first group before the card begins the pass.
    assert time.host_blocked == pytest.approx(6 * 0.050, abs=1e-3)
    assert time.waits[0].start < -0.02 and blocked[0].start == 0
    copies = {span.name: span.end for span in reversed(found.lane("copy"))}
    for span in blocked:
        arrived = copies[span.name.replace("ensure", "copy")]
        assert span.end == pytest.approx(arrived, abs=1e-4)
    # What the host waits for is no work of the card.
    assert time.wall == pytest.approx(0.3, abs=1e-3)
    assert time.computed == pytest.approx(sum(FAST), abs=1e-3)
    assert time.misses == missed
    assert [lane.name for lane in found.timeline("").lanes] == ["CPU", "copy", "attn", "ffn"]


def test_a_pass_by_events_blocks_nobody_and_counts_its_misses(device: Device, source: int) -> None:
    with timed(device, source, "history") as weights, device.stream() as stream:
        for _ in range(3):
            _pass(weights, stream, FAST)
        found = measured_pass(weights)
    assert found is not None
    assert found.time.host_blocked == 0 and not found.lane("CPU")
    assert found.time.misses == 6  # the ffn of each layer is copied on demand


def test_text_and_json_have_both_tables(device: Device, source: int) -> None:
    with timed(device, source, "block_shallow") as weights, device.stream() as stream:
        for _ in range(2):
            _pass(weights, stream, FAST)
        found = measured_pass(weights)
    assert found is not None
    text = found.text("Six layers", width=90)
    assert all(len(line) <= 90 for line in text.splitlines())
    head, figures = text[text.index("CPU blocked for weights") :].splitlines()[:2]
    assert head.split() == ["CPU", "blocked", "for", "weights", "GPU", "idle", "wall", "misses"]
    time = found.time
    shown = [time_text(t) for t in (time.host_blocked, time.stalled, time.wall)]
    assert figures.split() == " ".join([*shown, str(time.misses)]).split()
    facts = json.loads(found.to_json())
    assert facts["host_blocked_s"] == time.host_blocked > 0
    assert facts["gpu_idle_s"] == time.stalled > 0
    assert facts["wall_s"] == time.wall
    assert facts["misses"] == time.misses
    beside = facts["copied_beside"]
    assert list(beside) == ["attn", "ffn", "no work"]
    assert sum(beside.values()) == facts["copied_bytes"] == time.copied_bytes
    assert beside["no work"] > beside["attn"] + beside["ffn"] > 0
    for name, nbytes in beside.items():
        assert any(f"{name} " in row and bytes_text(nbytes) in row for row in text.splitlines())
    assert {span["lane"] for span in facts["spans"]} == {"CPU", "copy", "attn", "ffn"}


def test_many_names_share_a_lane(device: Device, source: int) -> None:
    groups = [Group(layer, f"part{layer}", 100 * MB) for layer in range(8)]
    sources = [source] * 8
    with (
        WeightManager(device, groups, sources, budget=300 * MB, timing=True) as weights,
        device.stream() as stream,
    ):
        weights.begin_pass()
        for group in groups:
            with weights.using(group.layer, group.name, compute_stream=stream):
                device.kernels.spin(10_000_000, stream=stream)
        weights.begin_pass()
        found = measured_pass(weights)
    assert found is not None
    assert [lane.name for lane in found.timeline("all").lanes] == ["copy", "compute"]
