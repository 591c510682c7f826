"""Random programs: the checker agrees with a plain search for order, and what it lets pass without
a report computes what the same steps compute one after the other."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from soak import rounds

from vramkit.driver import Driver

from .checker_machine import DEVICE_CELLS, EVENTS, MADE, PINNED_CELLS, STREAMS, SUMS, Runner

pytestmark = [pytest.mark.sim_only, pytest.mark.sim(stacks="python")]

# Each example resets the simulated GPU itself.
many = partial(settings, suppress_health_check=[HealthCheck.function_scoped_fixture])

streams = st.sampled_from(STREAMS)
streams_or_none = st.sampled_from(STREAMS + "-")
events = st.sampled_from(EVENTS)
counts = st.integers(1, 3)
sums = st.sampled_from([str(number) for number in range(SUMS)])


@st.composite
def parts(draw: st.DrawFn, cells: int, *others: int) -> str:
    """start:count in memory of so many cells, and starts of the same count in other memory."""
    count = draw(counts)
    first, *rest = (draw(st.integers(0, each - count)) for each in (cells, *others))
    return " ".join((f"{first}:{count}", *map(str, rest)))


def lines(verb: str, *words: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.just(verb), *words).map(" ".join)


device_part, pinned_part = parts(DEVICE_CELLS), parts(PINNED_CELLS)

steps = st.one_of(
    lines("fill", streams_or_none, device_part),
    lines("send", streams_or_none, parts(DEVICE_CELLS, PINNED_CELLS)),
    lines("fetch", streams_or_none, parts(PINNED_CELLS, DEVICE_CELLS)),
    lines("move", streams_or_none, parts(DEVICE_CELLS, DEVICE_CELLS)),
    lines("add", streams, parts(DEVICE_CELLS, DEVICE_CELLS, DEVICE_CELLS)),
    lines("sum", streams, sums, device_part),
    lines("sum", streams, sums, device_part),
    lines("clear_sum", streams, sums),
    lines("fetch_sum", streams_or_none, sums),
    lines("send_pageable", streams_or_none, device_part),
    lines("fetch_pageable", streams_or_none, device_part),
    lines("spin", streams),
    lines("read", pinned_part),
    lines("write", pinned_part),
    lines("record", events, streams),
    lines("record", events, streams),
    lines("wait", streams, events),
    lines("wait", streams, events),
    lines("synchronize", streams),
    lines("synchronize_event", events),
    lines("query", streams),
    lines("query_event", events),
    lines("elapsed", events, events),
    lines("synchronize_all"),
    lines("renew", st.sampled_from(MADE)),
    lines("free"),
    lines("advance"),
)
programs = st.lists(steps, min_size=6, max_size=40)
# A host function runs later than it is issued: which of two unordered accesses is found with which
# other one is then a matter of time.
host_functions = st.one_of(
    lines("call_read", streams, pinned_part), lines("call_write", streams, pinned_part)
)
programs_with_host_functions = st.lists(st.one_of(steps, host_functions), min_size=6, max_size=40)


def program(text: str) -> list[str]:
    return [step.strip() for step in text.split(",")]


@pytest.mark.expects_reports
@many(max_examples=rounds(200, 10_000))
@given(programs)
# An event carries what its stream had waited for, through a third stream.
@example(program("fill n 0:1, record 1 n, wait N 1, record 2 N, wait b 2, fill b 0:1"))
# A record counts from when it is waited for: moved on before, and after.
@example(program("fill n 0:1, record 1 n, record 1 N, wait b 1, fill b 0:1"))
@example(program("fill n 0:1, record 1 n, wait b 1, record 1 N, fill b 0:1"))
# The legacy stream joins what blocking streams did before it, also through an empty record.
@example(program("fill b 0:1, record 1 l, fill B 0:1"))
@example(program("fill b 0:1, fill p 0:1, record 1 p, fill l 0:1"))
@example(program("fill n 0:1, fill l 0:1, record 1 n, wait l 1, fill b 0:1"))
# Parts of a range: the last writer differs from cell to cell.
@example(
    program("fill n 0:3, fill N 1:1, record 1 N, wait b 1, fetch_pageable b 1:1, move b 4:3 0")
)
@example(program("send n 0:2 1, send N 4:2 1, write 0:3, synchronize n, write 0:3"))
# Readers of one cell on several streams; the writer is ordered after all but one.
@example(
    program(
        "fetch n 0:1 0, fetch N 1:1 0, fetch b 2:1 0, record 1 n, wait B 1, "
        "record 2 b, wait B 2, fill B 0:1"
    )
)
# What waits and what does not, and what it is worth.
@example(program("fetch n 0:1 0, free, read 0:1, synchronize n, read 0:1"))
@example(program("send_pageable - 0:1, fill n 0:1"))
@example(program("send - 0:1 0, fill n 0:1"))
@example(program("fill l 1:1, send_pageable - 0:1, fill n 1:1"))
@example(program("spin l, fill b 1:1, send_pageable - 0:1, fill n 1:1"))
@example(program("fetch b 0:1 0, fetch - 1:1 0, read 0:1"))
@example(program("fetch b 0:1 0, synchronize l, read 0:1"))
# Sums: additions do not race with each other, but with anything else.
@example(program("sum n 0 0:1, sum N 0 0:1, fetch_sum b 0"))
@example(program("sum n 0 0:1, sum n 0 0:1, record 1 n, wait b 1, sum N 0 1:1, clear_sum b 0"))
@example(program("clear_sum n 0, sum n 0 0:1, sum N 0 0:1, fetch_sum n 0, clear_sum N 0"))
@example(program("fetch_sum n 0, sum N 0 0:1, sum b 0 0:1, synchronize N, clear_sum N 0"))
# The time between two events says that both were reached, and nothing else.
@example(program("record 1 n, fill n 0:1, record 2 n, advance, elapsed 1 2, fill N 0:1"))
@example(program("record 1 n, fill n 0:1, record 2 N, advance, elapsed 1 2, fill N 0:1"))
@example(program("fill n 0:3, record 1 n, record 2 n, elapsed 1 2, fill N 0:1"))
# Streams that are destroyed with work in them, before and after it has run.
@example(program("fetch b 0:1 0, renew b, fill l 0:1, synchronize_all, read 0:1"))
@example(program("fetch n 0:1 0, renew n, advance, query l, synchronize_all, read 0:1"))
@example(program("fetch n 0:1 0, synchronize n, renew n, fetch n 0:1 0, read 0:1"))
@example(program("fetch b 0:1 0, renew b, synchronize l, read 0:1"))
@example(program("fetch b 0:1 0, renew b, advance, query n, synchronize l, read 0:1"))
@example(program("fetch b 0:1 0, renew b, advance, query n, query l, read 0:1"))
@example(program("fetch n 0:1 0, renew n, free, read 0:1"))
def test_reports_are_the_pairs_that_nothing_orders(driver: Driver, steps: list[str]) -> None:
    with Runner(driver) as runner:
        for step in steps:
            runner.step(step)
            assert runner.found() == runner.expected, step


@many(max_examples=rounds(60, 3000))
@given(programs_with_host_functions)
# What is issued after a host function and ordered behind it, while it has not run.
@example(program("spin n, call_read n 0:2, fetch N 0:2 0, write 0:2, call_read b 0:2"))
@example(program("spin n, call_write n 0:2, send N 0:2 0, call_write b 1:2, fetch n 0:2 0"))
@example(program("spin n, call_write n 0:2, call_write N 1:2, renew n, read 0:3"))
@example(program("spin n, fill n 0:3, move N 3:3 0, add b 0:1 1 3, fetch p 0:1 0, read 0:1"))
@example(
    program("spin l, write 0:2, send n 0:2 0, write 0:1, send N 1:1 0, fetch - 2:2 0, read 2:2")
)
def test_programs_without_races_compute_what_their_steps_do_in_turn(
    driver: Driver, steps: list[str]
) -> None:
    with Runner(driver, race_free=True) as runner:
        for step in steps:
            runner.step(step)
        assert runner.read_back() == runner.contents
        assert runner.read_back_sums() == runner.sums
        assert runner.misread == []
        assert runner.found() == set()
