"""What a streamed model costs, and the one line that says what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from vramkit.weights import Group, WeightManager, plan_layout
from vramkit.weights.experts import ExpertCache, ExpertLayer, Rows
from vramkit.weights.manager import WeightStats
from vramkit.weights.report import make_report
from vramkit.weights.timing import GroupTime, HostBlock, MeasuredPass

if TYPE_CHECKING:
    from vramkit.driver import Driver

MIB, GIB = 1 << 20, 1 << 30
COUNTS = WeightStats(copies=10, copied_bytes=0, misses=2, off_order=0, left_out=0, failed=0)


def report(seconds: float, waited: float, budget: int = 4 * GIB, **changes: Any) -> Any:
    groups = [Group(layer, "all", GIB) for layer in range(12)]
    last = MeasuredPass(
        seconds,
        tuple(GroupTime(n, 0.0, waited / 12, (seconds - waited) / 12) for n in range(len(groups))),
    )
    facts: dict[str, Any] = {
        "device": "card",
        "budget": budget,
        "kept_bytes": 1 << 20,
        "host_bytes": 12 * GIB,
        "layout": plan_layout(groups, budget=budget),
        "sent_bytes": plan_layout(groups, budget=budget).streamed_bytes,
        "link_bytes_per_s": 50e9,
        "last": last,
        "counts": COUNTS,
    }
    return make_report(**facts | changes)


def test_the_verdict_says_what_limits_a_pass() -> None:
    streamed = 10 * GIB  # a ring of two layers, two resident
    link = streamed / 50e9
    bound = report(link * 1.001, link * 0.9)
    assert bound.streamed_bytes == streamed
    assert bound.bound_s == pytest.approx(link)
    assert bound.verdict == "link-bound: 50.0 GB/s of 50.0 GB/s; 4 GiB more would save 40 %"
    packing = report(link * 1.001, link * 0.9, packed_share=0.76)
    assert packing.verdict == f"{bound.verdict}; packing would save 24 %"
    assert (
        report(0.5, 0.0).verdict == "compute-bound: 1.000 of the bound; the weights arrive in time"
    )
    late = report(0.5, 0.2).verdict
    assert late == "1.667 of the bound: the streams waited 200 ms for weights, 2 misses so far"
    assert "none was timed yet" in report(1, 0, last=None).verdict
    assert report(1, 0, budget=12 * GIB).verdict == "all weights are resident: nothing is streamed"


def test_copies_of_experts_are_no_compute(driver: Driver) -> None:
    layers = [ExpertLayer(0, 8 * MIB, 8, (Rows(0, MIB),))]
    cache = ExpertCache(driver.device(), layers, 2)
    try:
        routed = MeasuredPass(0.3, (GroupTime(0, 0.1, 0.15, 0.05),))
        found = report(0.25, 0.0, experts=cache, routed=routed)
    finally:
        cache.close()
    assert found.pass_s == 0.3  # the experts come behind the last group
    assert found.computed_s == pytest.approx(0.15)
    assert found.experts.waited_s == 0.15
    assert "of chosen experts took 50 % of the pass" in found.verdict


def test_packed_weights_take_less_of_the_link() -> None:
    packed = report(0.2, 0.1, sent_bytes=7 * GIB, staging_bytes=1 << 20)
    assert packed.bound_s == pytest.approx(7 * GIB / 50e9)
    assert "10 GiB, packed to 7 GiB" in str(packed)
    assert "1 MiB staging" in str(packed)


def test_text_and_json_have_the_figures() -> None:
    made = report(0.25, 0.1, predicted_s=0.24)
    text = str(made)
    assert "predicted" in text and "240 ms" in text
    for each in ("2 GiB resident, ring of 2 GiB", "12 GiB, pinned", "250 ms", "waited for 0.all"):
        assert each in text
    facts = msgspec.json.decode(made.to_json())
    assert facts["pass_s"] == 0.25
    assert facts["bound_s"] == made.bound_s
    assert facts["verdict"] == made.verdict
    assert facts["link_utilisation"] == pytest.approx(10 * GIB / 50e9 / 0.25)
    assert facts["predicted_s"] == 0.24


def test_what_the_host_waited_is_said() -> None:
    last = MeasuredPass(0.25, (), (HostBlock("ensure 0.all", 1.0, 1.02), HostBlock("b", 2.0, 2.01)))
    made = report(0, 0, last=last)
    assert made.host_blocked_s == pytest.approx(0.03)
    assert "host blocked" in str(made) and "30.0 ms" in str(made)
    assert msgspec.json.decode(made.to_json())["host_blocked_s"] == made.host_blocked_s
    assert "host blocked" not in str(report(0.25, 0.1))


@pytest.mark.sim_only
@pytest.mark.sim(data=False)
def test_events_tell_where_a_pass_spent_its_time(driver: Driver) -> None:
    """Copies of 100 ms beside work of 40 ms: the stream waits the rest of each."""
    device = driver.device()
    nbytes = 5_540_000_000 // 512 * 512
    groups = [Group(layer, "all", nbytes) for layer in range(4)]
    with (
        device.alloc_pinned(nbytes) as host,
        WeightManager(
            device, groups, [host.address] * 4, budget=2 * nbytes + (4 << 20), timing=True
        ) as manager,
        device.stream() as stream,
    ):
        assert manager.last_pass() is None
        for _ in range(3):
            manager.begin_pass()
            for group in groups:
                with manager.using(group.layer, group.name, compute_stream=stream):
                    device.kernels.spin(40_000_000, stream=stream)
        assert manager.last_pass() is None  # the third has not ended
        manager.begin_pass()
        last = manager.last_pass()
    assert last is not None
    assert [each.group for each in last.groups] == [0, 1, 2, 3]
    for each in last.groups:
        assert each.used == pytest.approx(0.04, abs=1e-4)
        assert each.waited == pytest.approx(0.06, abs=1e-3)
    assert last.seconds == pytest.approx(0.4, abs=1e-3)


def test_without_timing_there_is_no_last_pass(driver: Driver) -> None:
    device = driver.device()
    with (
        device.alloc_pinned(4096) as host,
        WeightManager(device, [Group(0, "all", 4096)], [host.address], budget=8 << 20) as manager,
        pytest.raises(ValueError, match="needs a WeightManager made with timing=True"),
    ):
        manager.last_pass()
