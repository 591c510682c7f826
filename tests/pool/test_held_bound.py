"""Any sequence of mallocs and frees: what the pool holds is bounded by what was in use."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings
from lab.played import simulated_card, stats_of
from soak import SOAKING, rounds

from vramkit import Pool
from vramkit.driver import Device, Driver, Simulator
from vramkit.lab.program import Program, ProgramBuilder

from .support import KIB, MIB

pytestmark = pytest.mark.sim_only

# Held at most, against the peak in use, on one stream and on several whose work is done: in any
# short sequence, and in the long run.
RATIO, REMAINDER = 1.10, 32 * MIB
# Without new memory a request takes longer, and the time for it is earned: in the long run by the
# time that passes. A program that does nothing but allocate is bounded by the first, with what the
# caches of one thread on three streams may keep.
MOST_WITHOUT_TIME = 3.0, 64 * MIB + 3 * 32 * MIB
MOST_WITH_TIME = 1.25, 128 * MIB

# Caches of requests that are answered at the same time, each for some layers: they grow by copies.
REQUESTS, LAYERS = 24, 4
BYTES_A_TOKEN = 16 * KIB

WORK_NS = 1000
SHORTEST, LONGEST = 40, 200  # events
SIZES = st.one_of(
    st.integers(1, 8 * KIB),
    st.integers(8 * KIB, 256 * KIB),
    st.integers(256 * KIB, 4 * MIB),
    st.integers(4 * MIB, 96 * MIB),
)
# Shrinking a failure takes half a minute: only the long version does it.
PHASES = list(Phase) if SOAKING else [Phase.explicit, Phase.reuse, Phase.generate]
CHOICES = st.integers(0, LONGEST)
EVENTS = st.lists(st.tuples(st.booleans(), SIZES, CHOICES), min_size=SHORTEST, max_size=LONGEST)


def random_program(events: list[tuple[bool, int, int]], streams: int, *, work: bool) -> Program:
    """A malloc on one of the streams, or a free of one of the live blocks, if there is any.

    With work the stream has a kernel behind each malloc, and the host waits for it.
    """
    builder = ProgramBuilder("random")
    live = []

    def allocate(size: int, stream: int) -> None:
        live.append(builder.allocate(size, stream))
        if work:
            builder.kernel(WORK_NS, stream)
            builder.wait_for_stream(stream)

    for stream in range(streams):  # each is used
        allocate(1, stream)
    for frees, size, choice in events:
        if frees and live:
            builder.free(live.pop(choice % len(live)))
        else:
            allocate(size, choice % streams)
    builder.free_all()
    return builder.build()


@pytest.mark.parametrize("streams", [1, 3])
def test_held_is_bounded_by_the_peak_in_use(driver: Driver, streams: int) -> None:
    @settings(max_examples=rounds(100, 2000), phases=PHASES)
    @given(EVENTS)
    def check(events: list[tuple[bool, int, int]]) -> None:
        program = random_program(events, streams, work=streams > 1)
        held = stats_of(program, simulated_card(driver)).peak_reserved
        assert held <= RATIO * program.peak_in_use + REMAINDER

    check()


@pytest.mark.sim(data=False, checker=False, capacity="140GiB")
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize(
    ("seconds", "bound"), [(0.0, MOST_WITHOUT_TIME), (0.02, MOST_WITH_TIME)], ids=["busy", "timed"]
)
@pytest.mark.parametrize(
    ("least", "most", "in_use"),
    [
        (8 * KIB, 4 * MIB, 80 * MIB),
        (64 * KIB, 2 * MIB, 80 * MIB),
        (64 * KIB, 2 * MIB, 1000 * MIB),
        (64 * KIB, 32 * MIB, 300 * MIB),
        (MIB, 96 * MIB, 1000 * MIB),
        (256, 96 * MIB, 2000 * MIB),
    ],
)
def test_steady_churn_settles(
    device: Device,
    pool: Pool,
    sim: Simulator,
    least: int,
    most: int,
    in_use: int,
    seconds: float,
    bound: tuple[float, int],
    streams: int,
) -> None:
    """As much is in use all the time; what is freed to make room is chosen at random.

    `seconds` pass with each malloc.
    """
    chance = random.Random(1)
    made = [device.stream() for _ in range(streams)]
    live: list[tuple[int, int]] = []
    total = peak = 0
    for _ in range(rounds(4000, 64_000)):
        size = int(least * (most / least) ** chance.random())
        while total + size > in_use:
            index = chance.randrange(len(live))
            live[index], live[-1] = live[-1], live[index]
            address, freed = live.pop()
            pool.free(address)
            total -= freed
        sim.advance(seconds)
        live.append((pool.malloc(size, chance.choice(made)), size))
        total += size
        peak = max(peak, total)
    ratio, remainder = bound
    assert pool.stats().peak_reserved <= ratio * peak + remainder
    for address, _ in live:
        pool.free(address)
    for stream in made:
        stream.close()


@pytest.mark.sim(data=False, checker=False, capacity="140GiB")
@pytest.mark.parametrize(("microseconds", "most"), [(0, 1.6), (20, 1.5), (200, 1.3)])
@pytest.mark.parametrize("seed", [1, 2])
def test_moves_do_not_make_further_moves_necessary(
    pool: Pool, device: Device, sim: Simulator, seed: int, microseconds: int, most: float
) -> None:
    """Each move leaves addresses between blocks. If free memory lies in short ranges there, every
    request moves some of it, and there is never time enough for all of it."""
    chance = random.Random(seed)
    live: dict[int, tuple[int, list[int]]] = {}
    total = peak = 0

    with device.stream() as stream:

        def caches(tokens: int) -> list[int]:
            nonlocal total, peak
            total += LAYERS * tokens * BYTES_A_TOKEN
            peak = max(peak, total)
            sim.advance(LAYERS * microseconds * 1e-6)
            return [pool.malloc(tokens * BYTES_A_TOKEN, stream) for _ in range(LAYERS)]

        def end(tokens: int, blocks: list[int]) -> None:
            nonlocal total
            total -= LAYERS * tokens * BYTES_A_TOKEN
            for block in blocks:
                pool.free(block)

        for step in range(rounds(8000, 100_000)):
            if len(live) < REQUESTS and chance.random() < 0.15:
                tokens = chance.randint(30, 3000)
                live[step] = tokens, caches(tokens)
            for request in [each for each in live if chance.random() < 0.1]:
                tokens, blocks = live[request]
                grown = tokens + 4 * chance.randint(1, 8)
                live[request] = grown, caches(grown)
                end(tokens, blocks)
                if chance.random() < 0.04:
                    end(*live.pop(request))
        assert pool.stats().peak_reserved <= most * peak
        for tokens, blocks in live.values():
            end(tokens, blocks)
