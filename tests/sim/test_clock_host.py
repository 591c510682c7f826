"""The virtual clock from the host's side: what calls cost, who waits, and what looking changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vramkit.driver import Driver, Memory

from .clock_support import ROUND as F
from .clock_support import Card, Figures, as_event_time, exactly

pytestmark = pytest.mark.sim_only

# Work that one stream may have waiting; the next launch holds the host up.
QUEUE_DEPTH = 1024


@pytest.fixture
def card(driver: Driver, tmp_path: Path) -> Iterator[Card]:
    with Card(driver, tmp_path) as made:
        yield made


def in_thread(body: Callable[[], float]) -> float:
    """What body() returns on a new thread."""
    results: list[float] = []
    thread = threading.Thread(target=lambda: results.append(body()))
    thread.start()
    thread.join()
    return results[0]


# Host time


def test_clock_starts_at_zero_and_advances_as_told(card: Card) -> None:
    assert card.now() == 0
    card.advance(1234.5)
    assert card.now() == exactly(1234.5)
    card.advance(0)
    assert card.now() == exactly(1234.5)
    for bad in (float("inf"), float("nan"), 1e20):
        with pytest.raises(ValueError, match="it may be a number"):
            card.advance(bad)
    with pytest.raises(ValueError, match="it may be a number of 0 or more"):
        card.advance(-1)


def test_calls_cost_what_the_profile_says(driver: Driver, tmp_path: Path) -> None:
    figures = Figures(calls={"cuMemcpyHtoDAsync": 1500, "cuLaunchKernel": 3500})
    with Card(driver, tmp_path, figures) as card:
        one, two = card.streams(2)
        card.copy_in(40_000, one)
        assert card.now() == exactly(1500)
        card.spin(20_000, two)
        assert card.now() == exactly(5000)
        # Work reaches the card when its call is over.
        assert card.end_of(one) == exactly(1500 + F.copy_latency + 10_000)
        assert card.end_of(two) == exactly(5000 + F.launch_latency + 20_000)


def test_cost_by_size_is_a_line_between_points(driver: Driver, tmp_path: Path) -> None:
    figures = Figures(calls={"cuMemHostAlloc": [[0, 100], [1_000_000, 1_000_100]]})
    with Card(driver, tmp_path, figures) as card:
        before = card.now()
        with card.device.alloc_pinned(250_000):
            assert card.now() - before == exactly(250_100)


def test_calls_beside_a_kernel_have_a_price_of_their_own(driver: Driver, tmp_path: Path) -> None:
    figures = Figures(calls={"cuMemCreate": 1000}, calls_busy={"cuMemCreate": 7000})
    with Card(driver, tmp_path, figures) as card:
        granularity = card.device.granularity

        def price() -> float:
            before = card.now()
            with card.device.create(granularity):
                return card.now() - before

        assert price() == exactly(1000)
        card.spin(50_000, card.stream())
        card.advance(F.launch_latency + 10_000)
        assert price() == exactly(7000)
        card.advance(50_000)
        assert price() == exactly(1000)


def test_synchronising_takes_the_host_to_the_end(card: Card) -> None:
    stream = card.stream()
    card.spin(10_000, stream)
    assert card.now() == 0
    stream.synchronize()
    assert card.now() == exactly(F.launch_latency + 10_000)
    stream.synchronize()
    assert card.now() == exactly(F.launch_latency + 10_000)


def test_host_that_is_late_does_not_wait(card: Card) -> None:
    stream = card.stream()
    card.spin(10_000, stream)
    card.advance(50_000)
    assert card.end_of(stream) == exactly(50_000)


def test_event_is_waited_for_no_longer_than_its_time(card: Card) -> None:
    stream = card.stream()
    card.spin(10_000, stream)
    event = stream.record(card.event())
    card.spin(40_000, stream)
    event.synchronize()
    assert card.now() == exactly(F.launch_latency + 10_000 + F.record)


def test_device_is_waited_for_as_a_whole(card: Card) -> None:
    one, two = card.streams(2)
    card.spin(10_000, one, multiprocessors=1)
    card.copy_in(400_000, two)
    card.device.synchronize()
    assert card.now() == exactly(F.copy_latency + 400_000 / F.to_device)


@pytest.mark.parametrize("kind", ["device", "pinned", "registered"])
def test_freeing_waits_for_all_work_of_the_card(driver: Driver, tmp_path: Path, kind: str) -> None:
    with Card(driver, tmp_path, checker=False) as card:
        memory: Memory
        if kind == "device":
            memory = card.device.alloc(4096)
        elif kind == "pinned":
            memory = card.device.alloc_pinned(4096)
        else:
            memory = card.device.register(bytearray(8192))
        card.spin(30_000, card.stream())
        memory.close()
        assert card.now() == exactly(F.launch_latency + 30_000)


def test_virtual_memory_calls_wait_for_nothing(card: Card) -> None:
    granularity = card.device.granularity
    card.spin(30_000, card.stream())
    with (
        card.device.reserve(granularity) as addresses,
        card.device.create(granularity) as physical,
    ):
        addresses.map(physical)
        addresses.set_access()
        addresses.unmap()
    assert card.now() == 0


def test_full_queue_holds_the_host_up(card: Card) -> None:
    stream = card.stream()
    each = F.launch_latency + 1_000
    for _ in range(QUEUE_DEPTH):
        card.spin(1_000, stream)
    assert card.now() == 0
    for launched in range(1, 4):
        card.spin(1_000, stream)
        assert card.now() == exactly(launched * each)
    assert card.end_of(stream) == exactly((QUEUE_DEPTH + 3) * each)


# Looking


def test_query_neither_waits_nor_runs_ahead(card: Card) -> None:
    stream = card.stream()
    end = F.launch_latency + 10_000
    card.spin(10_000, stream)
    event = stream.record(card.event())
    assert not stream.query()
    assert not event.query()
    assert card.now() == 0
    card.advance(end - 1)
    assert not stream.query()
    card.advance(1 + F.record)
    assert event.query()
    assert stream.query()
    assert card.now() == exactly(end + F.record)


def test_looking_does_not_slow_work_that_comes_later(card: Card) -> None:
    one, two = card.streams(2)
    card.copy_in(400_000, one)
    card.advance(1_000)
    assert not one.query()
    card.copy_in(4_000, two, into=card.other)
    arrival = 1_000 + F.copy_latency
    assert card.end_of(two) == exactly(arrival + 4_000 / (F.to_device / 2))


def test_what_was_observed_is_never_revised(card: Card) -> None:
    stream, other = card.streams(2)
    start, done = card.event(), card.event()
    start.record(stream)
    card.copy_in(40_000, stream)
    done.record(stream)
    done.synchronize()
    seen = done.elapsed_since(start)
    assert seen == as_event_time(F.copy_latency + 40_000 / F.to_device + F.record)
    for _ in range(10):
        card.copy_in(100_000, other, into=card.other)
        card.spin(50_000, stream)
    assert done.elapsed_since(start) == seen
    card.device.synchronize()
    assert done.elapsed_since(start) == seen


# Threads


def test_threads_have_clocks_of_their_own(card: Card) -> None:
    card.advance(1_000_000)
    assert in_thread(card.now) == 0
    assert card.now() == exactly(1_000_000)


def test_work_starts_at_the_time_of_the_thread_that_issues_it(card: Card) -> None:
    one, two = card.streams(2)
    card.advance(500_000)
    card.copy_in(4_000, one)

    def early() -> float:
        card.copy_in(8_000, two, into=card.other)
        return card.end_of(two)

    assert in_thread(early) == exactly(F.copy_latency + 8_000 / F.to_device)
    assert card.end_of(one) == exactly(500_000 + F.copy_latency + 4_000 / F.to_device)


def test_thread_that_lags_issues_no_earlier_than_what_was_observed(card: Card) -> None:
    one, two = card.streams(2)
    card.copy_in(400_000, one)
    end = card.end_of(one)

    def late() -> float:
        card.copy_in(4_000, two, into=card.other)
        return card.end_of(two)

    assert in_thread(late) == exactly(end + F.copy_latency + 4_000 / F.to_device)


def test_waiting_in_one_thread_leaves_the_other_ones_clock(card: Card) -> None:
    stream = card.stream()
    card.spin(10_000, stream)
    waited = in_thread(lambda: card.end_of(stream))
    assert waited == exactly(F.launch_latency + 10_000)
    # This thread looks at a card on which that much time has passed.
    assert card.now() == exactly(waited)


# The wall clock


@pytest.mark.parametrize("scale", [None, 20.0])
def test_wall_clock_really_waits(driver: Driver, tmp_path: Path, scale: float | None) -> None:
    simulated = 30e-3 * (scale or 1)
    with Card(driver, tmp_path, clock="wall", scale=scale) as card:
        stream = card.stream()
        before, began = card.now(), time.monotonic()
        with card.device.timeline() as timeline:
            card.spin(round(simulated * 1e9), stream)
            assert not stream.query()
            stream.synchronize()
        assert time.monotonic() - began >= 30e-3
        assert (card.now() - before) * 1e-9 >= simulated
        # The card itself is as exact as ever; only the host is a real one.
        (span,) = timeline.spans
        assert (span.end - span.start) * 1e9 == exactly(simulated * 1e9 + F.launch_latency)


def test_wall_clock_runs_by_itself(driver: Driver, tmp_path: Path) -> None:
    with Card(driver, tmp_path, clock="wall") as card:
        landed = threading.Event()
        stream = card.stream()
        card.spin(5_000_000, stream)
        stream.host_function(landed.set)
        assert landed.wait(timeout=60)  # without a driver call to move it along


def test_calls_take_real_time_on_the_wall_clock(driver: Driver, tmp_path: Path) -> None:
    figures = Figures(calls={"cuEventRecord": 10_000_000})
    with Card(driver, tmp_path, figures, clock="wall") as card:
        stream, event = card.stream(), card.event()
        began = time.monotonic()
        event.record(stream)
        event.record(stream)
        assert time.monotonic() - began >= 20e-3


def test_scale_without_the_wall_clock_is_refused(driver: Driver, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scale does nothing with the virtual clock"):
        Card(driver, tmp_path, scale=2.0)
