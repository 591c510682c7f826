"""The virtual clock repeats itself: one order of calls has one timeline, to the last bit."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak import rounds

from vramkit.driver import Driver, Event, TimelineSpan

from .clock_support import MEMORY, Card, Figures

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(checker=False)]

STREAMS = 4
# Figures that do not divide evenly, and calls that cost something.
ODD = Figures(
    to_device=3.7,
    to_host=2.9,
    duplex=1.3,
    copy_latency=1013.7,
    launch_latency=507.3,
    record=13.1,
    wait=17.9,
    multiprocessors=7,
    calls={"cuMemcpyHtoDAsync": 91.3, "cuMemcpyDtoHAsync": 57.7, "cuLaunchKernel": 203.9},
)


Kind = Literal["in", "out", "on", "spin", "record", "wait", "advance", "query", "synchronize"]


class Step(NamedTuple):
    """One call of a generated program."""

    kind: Kind
    stream: int
    amount: int


steps = st.builds(
    Step,
    st.sampled_from(get_args(Kind)),
    st.integers(0, STREAMS - 1),
    st.integers(1, 200_000),
)
programs = st.lists(steps, max_size=40)


class Outcome(NamedTuple):
    spans: list[TimelineSpan]
    host: list[float]  # the host clock after each step
    streams: list[int]


def run(driver: Driver, folder: Path, program: list[Step]) -> Outcome:
    host = []
    with Card(driver, folder, ODD, checker=False, data=False) as card:
        streams = [card.stream(priority=-(i % 3)) for i in range(STREAMS)]
        events: list[Event] = [card.event() for _ in range(STREAMS)]
        with card.device.timeline() as timeline:
            for step in program:
                stream, nbytes = streams[step.stream], min(step.amount, MEMORY)
                match step.kind:
                    case "in":
                        card.copy_in(nbytes, stream)
                    case "out":
                        card.copy_out(nbytes, stream)
                    case "on":
                        card.device.copy(card.inside, card.other, nbytes, stream=stream)
                    case "spin":
                        blocks = 1 + step.amount % (2 * ODD.multiprocessors)
                        card.spin(step.amount, stream, multiprocessors=blocks)
                    case "record":
                        events[step.stream].record(stream)
                    case "wait":
                        stream.wait(events[step.amount % STREAMS])
                    case "advance":
                        card.advance(step.amount / 7)
                    case "query":
                        stream.query()
                    case "synchronize":
                        stream.synchronize()
                host.append(card.now())
        return Outcome(timeline.spans, host, [stream.id for stream in streams])


def times(outcome: Outcome) -> list[tuple[str, int, float, float]]:
    """Comparable from run to run, whatever ids the streams were given."""
    number = {stream: i for i, stream in enumerate(outcome.streams)}
    return [(s.name, number[s.stream], s.start, s.end) for s in outcome.spans]


property_test = settings(
    max_examples=rounds(30, 1000), suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Each stream its share of everything, all at once in the end.
KINDS: list[Kind] = ["in", "spin", "record", "out", "wait", "on", "advance", "query", "spin"]
LONG = [
    Step(kind, stream, (997 * len(kind) * (stream + 7)) % 150_000 + 1)
    for stream in range(STREAMS)
    for kind in KINDS
]


def test_three_runs_are_equal_to_the_last_bit(driver: Driver, tmp_path: Path) -> None:
    first = run(driver, tmp_path, LONG)
    assert len(first.spans) == 5 * STREAMS
    for _ in range(2):
        again = run(driver, tmp_path, LONG)
        assert times(again) == times(first)
        assert again.host == first.host


@property_test
@given(programs)
def test_any_program_repeats_itself(driver: Driver, tmp_path: Path, program: list[Step]) -> None:
    first, second = (run(driver, tmp_path, program) for _ in range(2))
    assert times(first) == times(second)
    assert first.host == second.host


@property_test
@given(programs)
def test_looking_changes_nothing(driver: Driver, tmp_path: Path, program: list[Step]) -> None:
    blind = [step for step in program if step.kind != "query"]
    looked_at = [
        each for i, step in enumerate(blind) for each in (step, Step("query", i % STREAMS, 1))
    ]
    assert times(run(driver, tmp_path, blind)) == times(run(driver, tmp_path, looked_at))


@property_test
@given(programs)
def test_streams_keep_their_order_and_nothing_outruns_the_card(
    driver: Driver, tmp_path: Path, program: list[Step]
) -> None:
    outcome = run(driver, tmp_path, program)
    rates = {
        "host to device": ODD.to_device,
        "device to host": ODD.to_host,
        "on device": ODD.on_device,
    }
    work = [step for step in program if step.kind in ("in", "out", "on", "spin")]
    assert len(outcome.spans) == len(work)
    for i, stream in enumerate(outcome.streams):
        mine = [span for span in outcome.spans if span.stream == stream]
        assert len(mine) == sum(step.stream == i for step in work)
        for earlier, later in pairwise(mine):
            assert later.start >= earlier.end - 1e-15
    for span in outcome.spans:
        took = (span.end - span.start) * 1e9
        if span.lane in rates:
            assert took >= (ODD.copy_latency + span.nbytes / rates[span.lane]) * (1 - 1e-9)
    for lane, rate in rates.items():
        on_lane = [span for span in outcome.spans if span.lane == lane]
        if on_lane:
            window = max(s.end for s in on_lane) - min(s.start for s in on_lane)
            assert window * 1e9 >= sum(s.nbytes for s in on_lane) / rate * (1 - 1e-9)
    assert outcome.host == sorted(outcome.host)


def test_event_loop_that_awaits_host_functions_repeats_itself(
    driver: Driver, tmp_path: Path
) -> None:
    """The loop makes no calls while it waits: the card runs on to the next host function."""

    async def job(card: Card, number: int, seen: list[tuple[int, int, float]]) -> None:
        loop, stream = asyncio.get_running_loop(), card.stream()
        for turn in range(20):
            done = asyncio.Event()
            card.spin(1_000 * number + 7 * turn, stream, multiprocessors=2)
            stream.host_function(lambda done=done: loop.call_soon_threadsafe(done.set))
            await done.wait()
            seen.append((number, turn, card.now()))

    async def jobs(card: Card) -> list[tuple[int, int, float]]:
        seen: list[tuple[int, int, float]] = []
        await asyncio.gather(*(job(card, number, seen) for number in range(1, 5)))
        return seen

    def once() -> list[tuple[int, int, float]]:
        with Card(driver, tmp_path, ODD, checker=False) as card:
            return asyncio.run(jobs(card))

    first = once()
    assert len(first) == 80
    assert [at for _, _, at in first] == sorted(at for _, _, at in first)
    assert once() == first
