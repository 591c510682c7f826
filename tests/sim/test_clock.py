"""The virtual clock: when work on the card begins and ends, exactly, from the profile's figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from vramkit.driver import Driver

from .clock_support import ROUND as F
from .clock_support import Card, as_event_time, exactly

pytestmark = pytest.mark.sim_only


@pytest.fixture
def card(driver: Driver, tmp_path: Path) -> Iterator[Card]:
    with Card(driver, tmp_path) as made:
        yield made


# One operation at a time


@pytest.mark.parametrize("nbytes", [1, 4096, 1_000_000])
def test_copies_take_their_latency_and_their_bytes(card: Card, nbytes: int) -> None:
    stream = card.stream()
    card.copy_in(nbytes, stream)
    end = F.copy_latency + nbytes / F.to_device
    assert card.end_of(stream) == exactly(end)
    card.copy_out(nbytes, stream)
    end += F.copy_latency + nbytes / F.to_host
    assert card.end_of(stream) == exactly(end)
    card.device.copy(card.inside, card.other.at(0, nbytes), nbytes, stream=stream)
    end += F.copy_latency + nbytes / F.on_device
    assert card.end_of(stream) == exactly(end)


def test_fill_takes_the_rate_of_fills(card: Card) -> None:
    stream = card.stream()
    card.device.fill(card.inside, 7, 160_000, stream=stream)
    assert card.end_of(stream) == exactly(F.launch_latency + 160_000 / F.fill)


def test_kernel_over_memory_takes_the_rate_of_memory(card: Card) -> None:
    stream = card.stream()
    card.device.kernels.fill(card.inside, 25_000, 1, stream=stream)
    end = F.launch_latency + 4 * 25_000 / F.kernel_memory
    assert card.end_of(stream) == exactly(end)
    card.device.kernels.sweep(card.inside, 25_000, 3, stream=stream)
    end += F.launch_latency + 3 * 2 * 4 * 25_000 / F.kernel_memory
    assert card.end_of(stream) == exactly(end)


def test_no_kernel_is_shorter_than_the_shortest(card: Card) -> None:
    stream = card.stream()
    card.spin(1, stream)
    assert card.end_of(stream) == exactly(F.launch_latency + F.minimum_duration)


def test_pageable_copy_to_the_host_runs_at_its_own_rate_and_is_waited_for(card: Card) -> None:
    target = bytearray(100_000)
    card.device.copy(target, card.other, len(target), stream=card.stream())
    assert card.now() == exactly(F.copy_latency + len(target) / F.pageable_to_host)


def test_pageable_copy_to_the_device_takes_the_host_the_time_of_staging(card: Card) -> None:
    stream = card.stream()
    source = bytes(100_000)
    card.device.copy(card.inside, source, stream=stream)
    staged = len(source) / F.pageable_to_device
    assert card.now() == exactly(staged)
    # The bytes then cross the link from memory of the driver's own.
    end = staged + F.copy_latency + len(source) / F.to_device
    assert card.end_of(stream) == exactly(end)


def test_copies_in_chunks_pay_the_latency_each(card: Card) -> None:
    stream = card.stream()
    for _ in range(25):
        card.copy_in(8000, stream)
    assert card.end_of(stream) == exactly(25 * (F.copy_latency + 8000 / F.to_device))


# Work side by side


def test_copy_and_kernel_overlap(card: Card) -> None:
    one, two = card.streams(2)
    card.copy_in(400_000, one)
    card.spin(60_000, two)
    assert card.end_of(two) == exactly(F.launch_latency + 60_000)
    assert card.end_of(one) == exactly(F.copy_latency + 400_000 / F.to_device)


def test_two_copies_one_way_share_the_link(card: Card) -> None:
    one, two = card.streams(2)
    card.copy_in(40_000, one)
    card.copy_in(100_000, two, into=card.other)
    shorter = F.copy_latency + 40_000 / (F.to_device / 2)
    assert card.end_of(one) == exactly(shorter)
    assert card.end_of(two) == exactly(shorter + 60_000 / F.to_device)


def test_third_copy_joins_and_leaves(card: Card) -> None:
    one, two, three = card.streams(3)
    card.copy_in(60_000, one)
    card.copy_in(60_000, two, into=card.other)
    card.advance(10_000)
    card.copy_in(20_000, three, into=card.memory())
    joins = 10_000 + F.copy_latency
    sent = (joins - F.copy_latency) * F.to_device / 2  # of the first and of the second
    third = joins + 20_000 / (F.to_device / 3)
    left = 60_000 - sent - 20_000
    assert card.end_of(three) == exactly(third)
    assert card.end_of(one) == exactly(third + left / (F.to_device / 2))
    assert card.end_of(two) == exactly(third + left / (F.to_device / 2))


def test_duplex_slows_both_ways_while_they_overlap(card: Card) -> None:
    down, up = card.streams(2)
    card.copy_in(100_000, down)
    card.advance(5_000)
    card.copy_out(30_000, up)
    meet = 5_000 + F.copy_latency
    alone = (meet - F.copy_latency) * F.to_device
    up_end = meet + 30_000 / F.duplex
    together = (up_end - meet) * F.duplex
    assert card.end_of(up) == exactly(up_end)
    assert card.end_of(down) == exactly(up_end + (100_000 - alone - together) / F.to_device)


def test_duplex_rate_is_shared_within_a_direction(card: Card) -> None:
    one, two, up = card.streams(3)
    card.copy_in(20_000, one)
    card.copy_in(20_000, two, into=card.memory())
    card.copy_out(100_000, up)
    both = F.copy_latency + 20_000 / (F.duplex / 2)
    assert card.end_of(one) == exactly(both)
    assert card.end_of(two) == exactly(both)
    sent = (both - F.copy_latency) * F.duplex
    assert card.end_of(up) == exactly(both + (100_000 - sent) / F.to_host)


def test_copies_on_the_card_leave_the_link_alone(card: Card) -> None:
    one, two = card.streams(2)
    card.copy_in(40_000, one)
    card.device.copy(card.memory(), card.other, 800_000, stream=two)
    assert card.end_of(one) == exactly(F.copy_latency + 40_000 / F.to_device)
    assert card.end_of(two) == exactly(F.copy_latency + 800_000 / F.on_device)


def test_small_kernels_run_at_once(card: Card) -> None:
    streams = card.streams(5)
    for stream in streams:
        card.spin(30_000, stream, multiprocessors=2)
    for stream in streams:
        assert card.end_of(stream) == exactly(F.launch_latency + 30_000)


def test_kernels_take_multiprocessors_by_demand_in_order(card: Card) -> None:
    one, two, three = card.streams(3)
    card.spin(10_000, one, multiprocessors=6)
    card.spin(10_000, two, multiprocessors=8)
    card.spin(10_000, three, multiprocessors=4)
    # The second has four of its eight at first, the third none.
    first = F.launch_latency + 10_000
    assert card.end_of(one) == exactly(first)
    # Then the second gets all it asks for, and two are left for the third until it ends.
    second = first + 5_000
    assert card.end_of(two) == exactly(second)
    assert card.end_of(three) == exactly(second + 10_000 - 5_000 / 2)


def test_large_launch_runs_in_waves(card: Card) -> None:
    stream = card.stream()
    card.spin(10_000, stream, multiprocessors=3 * F.multiprocessors)
    assert card.end_of(stream) == exactly(F.launch_latency + 3 * 10_000)


def test_urgent_kernel_takes_what_it_asks_for_first(card: Card) -> None:
    low, lower, high = card.stream(), card.stream(), card.stream(priority=-1)
    card.spin(20_000, low)  # takes the card
    card.advance(2 * F.launch_latency)
    card.spin(20_000, lower)  # queues up, and so does the urgent one
    card.spin(20_000, high, multiprocessors=6)
    first = F.launch_latency + 20_000
    assert card.end_of(low) == exactly(first)
    assert card.end_of(high) == exactly(first + 20_000)
    # Four of ten meanwhile, then all.
    assert card.end_of(lower) == exactly(first + 20_000 + 20_000 * (1 - 0.4))


def test_urgent_kernel_waits_for_the_wave_that_runs(card: Card) -> None:
    low, high = card.stream(), card.stream(priority=-5)
    card.spin(10_000, low, multiprocessors=2 * F.multiprocessors)
    card.advance(3_000)
    card.spin(4_000, high, multiprocessors=5)
    wave = F.launch_latency + 10_000
    assert card.end_of(high) == exactly(wave + 4_000)
    assert card.end_of(low) == exactly(wave + 4_000 + (10_000 - 4_000 / 2))


def test_copies_ignore_priorities(card: Card) -> None:
    low, high = card.stream(), card.stream(priority=-5)
    card.copy_in(40_000, low)
    card.copy_in(40_000, high, into=card.other)
    end = F.copy_latency + 40_000 / (F.to_device / 2)
    assert card.end_of(high) == exactly(end)
    assert card.end_of(low) == exactly(end)


# Order


def test_event_wait_holds_a_stream_until_the_event(card: Card) -> None:
    one, two = card.streams(2)
    start, done = card.event(), card.event()
    start.record(two)
    card.copy_in(80_000, one)
    two.wait(one.record(card.event()))
    card.spin(5_000, two)
    done.record(two)
    copied = F.copy_latency + 80_000 / F.to_device + F.record
    ran = copied + F.wait + F.launch_latency + 5_000
    assert card.end_of(two) == exactly(ran + F.record)
    # Each event is recorded the same time after the stream has got there.
    assert done.elapsed_since(start) == as_event_time(ran)


def test_chain_through_three_streams(card: Card) -> None:
    end = 0.0
    streams = card.streams(3)
    for i in range(6):
        stream, former = streams[i % 3], streams[(i - 1) % 3]
        if i:
            stream.wait(former.record(card.event()))
            end += F.record + F.wait
        card.spin(1_000 * (i + 1), stream)
        end += F.launch_latency + 1_000 * (i + 1)
    assert card.end_of(streams[5 % 3]) == exactly(end)


def test_event_that_has_been_reached_holds_nothing_up(card: Card) -> None:
    one, two = card.streams(2)
    event = one.record(card.event())
    event.synchronize()
    before = card.now()
    two.wait(event)
    card.copy_in(4_000, two)
    assert card.end_of(two) == exactly(before + F.copy_latency + 4_000 / F.to_device)


def test_wait_is_for_the_record_that_was_there_when_it_was_issued(card: Card) -> None:
    one, two = card.streams(2)
    event = card.event()
    card.spin(10_000, one, multiprocessors=1)
    event.record(one)
    two.wait(event)
    card.spin(50_000, one, multiprocessors=1)
    event.record(one)
    card.spin(1_000, two, multiprocessors=1)
    first = F.launch_latency + 10_000 + F.record
    assert card.end_of(two) == exactly(first + F.wait + F.launch_latency + 1_000)


def test_legacy_stream_is_a_barrier_for_blocking_streams_only(card: Card) -> None:
    before, after = card.stream(blocking=True), card.stream(blocking=True)
    free = card.stream()
    card.spin(10_000, before, multiprocessors=1)
    with card.device.legacy_stream as legacy:
        card.spin(20_000, legacy, multiprocessors=1)
    card.spin(30_000, after, multiprocessors=1)
    card.spin(5_000, free, multiprocessors=1)
    first = F.launch_latency + 10_000
    second = first + F.launch_latency + 20_000
    third = second + F.launch_latency + 30_000
    assert card.end_of(free) == exactly(F.launch_latency + 5_000)
    assert card.end_of(before) == exactly(first)
    assert card.end_of(after) == exactly(third)


def test_host_function_has_its_place_in_the_stream(card: Card) -> None:
    stream = card.stream()
    calls: list[str] = []
    card.spin(10_000, stream)
    stream.host_function(lambda: calls.append("called"))
    card.copy_in(40_000, stream)
    end = F.launch_latency + 10_000 + F.host_function + F.copy_latency + 40_000 / F.to_device
    assert card.end_of(stream) == exactly(end)
    assert calls == ["called"]


def test_value_written_by_one_stream_lets_another_go(card: Card) -> None:
    one, two = card.streams(2)
    flag = card.memory(64)
    card.device.fill(flag, 0)
    card.device.synchronize()
    start = card.now()
    card.spin(10_000, one, multiprocessors=1)
    one.write_value(flag, 3)
    two.wait_value(flag, 3)
    card.spin(1_000, two, multiprocessors=1)
    written = start + F.launch_latency + 10_000
    assert card.end_of(two) == exactly(written + F.launch_latency + 1_000)


def test_devices_do_not_slow_each_other(driver: Driver, tmp_path: Path) -> None:
    with Card(driver, tmp_path, devices=2) as card:
        second = driver.device(1)
        stream = card.stream()
        with (
            second.stream() as other,
            second.alloc(1 << 20) as there,
            second.alloc_pinned(1 << 20) as here,
        ):
            card.copy_in(80_000, stream)
            second.copy(there, here, 80_000, stream=other)
            end = F.copy_latency + 80_000 / F.to_device
            other.synchronize()
            assert card.now() == exactly(end)
            assert card.end_of(stream) == exactly(end)


# Timelines


def test_timeline_matches_events(card: Card) -> None:
    one, two = card.streams(2)
    events = [card.event() for _ in range(4)]
    with card.device.timeline() as timeline:
        card.advance(777)  # spans count from the first one's start
        events[0].record(one)
        card.copy_in(400_000, one)
        events[1].record(one)
        events[2].record(two)
        card.spin(30_000, two)
        events[3].record(two)
    copy, kernel = sorted(timeline.spans, key=lambda span: span.nbytes, reverse=True)
    assert [copy.name, copy.lane, copy.stream, copy.nbytes] == [
        "cuMemcpyHtoDAsync",
        "host to device",
        one.id,
        400_000,
    ]
    assert [kernel.name, kernel.lane, kernel.stream] == ["vk_spin", "compute", two.id]
    assert (copy.start, kernel.start) == (0, 0)
    assert copy.end * 1e9 == exactly(F.copy_latency + 400_000 / F.to_device)
    assert kernel.end * 1e9 == exactly(F.launch_latency + 30_000)
    # An event is recorded some time after it is reached, as the next one is: that cancels out.
    assert events[1].elapsed_since(events[0]) == as_event_time(copy.end * 1e9 + F.record)
    assert events[3].elapsed_since(events[2]) == as_event_time(kernel.end * 1e9 + F.record)


def test_spans_of_a_stream_follow_each_other(card: Card) -> None:
    stream = card.stream()
    with card.device.timeline() as timeline:
        for _ in range(5):
            card.copy_in(4_000, stream)
            card.spin(1_000, stream)
    spans = timeline.spans
    assert len(spans) == 10
    end = 0.0
    for span in spans:
        assert span.start * 1e9 == exactly(end)
        kernel = span.lane == "compute"
        end += F.launch_latency + 1_000 if kernel else F.copy_latency + 4_000 / F.to_device
        assert span.end * 1e9 == exactly(end)
