"""How a recorded run becomes a program: stand-in kernels, waits, pauses, and dealing."""

from __future__ import annotations

import random
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from soak import rounds

from vramkit import Pool
from vramkit.driver import Driver
from vramkit.lab.player import play
from vramkit.lab.program import Op, Program
from vramkit.lab.traces import Trace, TraceBuilder, read_traces
from vramkit.lab.traces.programs import MOST_AHEAD, as_program, dealt
from vramkit.lab.traces.trace import Kind

from ..played import simulated_card
from ..support import Plain
from .support import RECORD_HEADER, written
from .test_formats import PLAIN

US = 1000


def steps(program: Program, *ops: Op) -> list[tuple[str, int, int, int]]:
    """Name, what, where and thread of all steps, or of some kinds."""
    columns = zip(program.ops, program.what, program.where, program.threads, strict=True)
    return [(Op(op).name.lower(), *rest) for op, *rest in columns if not ops or op in ops]


def recorded(folder: Path, *lines: str) -> Trace:
    """Each line without its call, which is added where the format has one."""
    text = "".join(
        f"{line},call\n" if line[0] in "+-" or line.startswith(("launch", "done")) else f"{line}\n"
        for line in lines
    )
    (trace,) = read_traces(written(folder, RECORD_HEADER + text))
    return trace


# Traces without work


def test_a_kernel_stands_behind_each_allocation(tmp_path: Path) -> None:
    (trace,) = read_traces(written(tmp_path, PLAIN))
    assert steps(as_program(trace, kernel_ns=7 * US)) == [
        ("allocate", 0, 0, 0),
        ("kernel", 7000, 0, 0),
        ("allocate", 1, 1, 0),
        ("kernel", 7000, 1, 0),
        ("free", 0, -1, 0),
        ("allocate", 2, 1, 0),
        ("kernel", 7000, 1, 0),
        ("free", 1, -1, 0),
        ("free", 2, -1, 0),
    ]
    without = as_program(trace, kernel_ns=0)
    assert {step[0] for step in steps(without)} == {"allocate", "free"}


def test_what_is_never_freed_is_freed_at_the_end(tmp_path: Path) -> None:
    (trace,) = read_traces(written(tmp_path, "+5,10,0\n+6,20,0\n+7,30,0\n-6\n"))
    program = as_program(trace, kernel_ns=0)
    assert [step[:2] for step in steps(program)][3:] == [("free", 1), ("free", 0), ("free", 2)]
    assert program.peak_in_use == 60


def test_the_host_is_at_most_so_many_kernels_ahead_of_a_stream() -> None:
    builder = TraceBuilder("busy", "plain")
    for number in range(5 * MOST_AHEAD):
        builder.allocate(number, 8, number % 2)
        builder.free(number)
    program = as_program(builder.build(), kernel_ns=US)
    queued = {0: 0, 1: 0}  # kernels of each stream that may not have ended
    at: dict[int, tuple[int, int]] = {}  # of each event: its stream, and the kernels before it
    total = {0: 0, 1: 0}
    most = 0
    for name, what, where, _ in steps(program):
        if name == "kernel":
            total[where] += 1
            queued[where] += 1
            most = max(most, queued[where])
        elif name == "record":
            at[what] = where, total[where]
        elif name == "wait_for_event":
            stream, before = at[what]
            queued[stream] = min(queued[stream], total[stream] - before)
    assert MOST_AHEAD // 2 < most <= MOST_AHEAD


# Recordings


def test_each_step_is_on_the_thread_and_the_stream_of_the_recording(tmp_path: Path) -> None:
    # Threads are numbered as they come: 40, 50, 60; streams as well: 5, 6, 7.
    trace = recorded(
        tmp_path,
        "+0,64,5,40,0,0",
        "+1,32,6,50,10,0",
        "launch,1,7,60,20",
        "event,9,6,60,30",
        "wait,7,9,50,40",
        "done,event,9,60,50",
        "done,stream,7,50,60",
        "done,device,0,60,70",
        "+2,16,6,40,75,0",
        "-1,5,60,80",
    )
    free = TraceBuilder("freed elsewhere", "RMM")
    free.allocate("a", 64, 5, 40)
    free.free("a", 6, 50)
    assert steps(as_program(trace)) == [
        ("allocate", 0, 0, 0),
        ("allocate", 1, 1, 1),
        ("kernel", 60 - 20, 2, 2),
        ("record", 0, 1, 2),
        ("wait", 0, 2, 1),
        ("wait_for_event", 0, 0, 2),
        ("wait_for_stream", 0, 2, 1),
        ("wait_for_device", 0, 0, 2),
        ("allocate", 2, 1, 0),
        ("free", 1, -1, 2),
        ("free", 0, -1, 0),
        ("free", 2, -1, 0),
    ]
    elsewhere = as_program(free.build(), kernel_ns=0)
    assert steps(elsewhere) == [("allocate", 0, 0, 0), ("free", 0, 1, 1)]


def test_launches_share_the_time_until_the_host_knew(tmp_path: Path) -> None:
    trace = recorded(
        tmp_path,
        "+0,64,1,0,0,0",
        "launch,3,1,0,1000",
        "launch,1,1,0,5000",
        "launch,2,2,0,6000",  # nobody waits for this stream
        "done,stream,1,0,9000",
        "launch,5,1,0,20000",
        "done,device,0,0,21000",
        "launch,4,1,0,30000",  # nor for this
    )
    kernels = [step[1:3] for step in steps(as_program(trace, kernel_ns=10 * US), Op.KERNEL)]
    # 8000 ns for four launches; the card was known to be idle at 21000; four of an unknown time.
    assert kernels == [(6000, 0), (2000, 0), (15000, 1), (1000, 0), (40000, 0)]
    waits = steps(as_program(trace, kernel_ns=US), Op.WAIT_FOR_STREAM, Op.WAIT_FOR_DEVICE)
    assert [step[0] for step in waits] == ["wait_for_stream", "wait_for_device"]


def test_an_event_completes_what_was_before_it(tmp_path: Path) -> None:
    trace = recorded(
        tmp_path,
        "+0,64,1,0,0,0",
        "wait,1,7,0,1",  # for an event that was never recorded: no wait
        "launch,1,1,0,1000",
        "event,7,1,0,2000",
        "launch,1,1,0,3000",
        "done,event,7,0,4000",
        "done,event,8,0,5000",
        "done,stream,1,0,7000",
    )
    program = as_program(trace, kernel_ns=US)
    assert [step[1] for step in steps(program, Op.KERNEL)] == [3000, 4000]
    assert len(steps(program, Op.WAIT)) == 0
    assert len(steps(program, Op.RECORD)) == len(steps(program, Op.WAIT_FOR_EVENT)) == 1


def test_what_a_stream_waited_for_is_complete_with_it(tmp_path: Path) -> None:
    trace = recorded(
        tmp_path,
        "+0,64,1,0,0,0",
        "launch,1,1,0,1000",
        "event,7,1,0,1500",
        "wait,2,7,0,1600",
        "launch,1,2,0,2000",
        "launch,1,1,0,2500",
        "done,stream,2,0,5000",
    )
    kernels = [step[1] for step in steps(as_program(trace, kernel_ns=9 * US), Op.KERNEL)]
    assert kernels == [4000, 3000, 9000]  # the last one nobody waited for


def test_a_stream_that_only_waited_completes_what_it_waited_for(tmp_path: Path) -> None:
    trace = recorded(
        tmp_path,
        "+0,64,1,0,0,0",
        "launch,1,1,0,1000",
        "event,7,1,0,1500",
        "wait,2,7,0,1600",
        "done,stream,2,0,5000",
        "done,device,0,0,9000",
    )
    kernels = [step[1] for step in steps(as_program(trace, kernel_ns=9 * US), Op.KERNEL)]
    assert kernels == [4000]


def test_a_wait_behind_an_event_is_not_known_to_be_over_with_it(tmp_path: Path) -> None:
    trace = recorded(
        tmp_path,
        "+0,64,1,0,0,0",
        "launch,1,1,0,1000",
        "event,7,1,0,1100",
        "launch,1,2,0,1200",
        "event,8,2,0,1300",
        "wait,2,7,0,1400",
        "done,event,8,0,2200",
        "done,device,0,0,9000",
    )
    kernels = [step[1] for step in steps(as_program(trace, kernel_ns=9 * US), Op.KERNEL)]
    assert kernels == [8000, 1000]


def test_without_kernels_the_points_of_order_stay(tmp_path: Path) -> None:
    trace = recorded(
        tmp_path, "+0,64,1,0,0,0", "launch,3,1,0,10", "event,7,1,0,20", "wait,2,7,1,30"
    )
    program = as_program(trace, kernel_ns=0)
    assert [step[0] for step in steps(program)] == ["allocate", "record", "wait", "free"]
    assert (program.thread_count, program.in_turns) == (2, True)


# Pauses


@pytest.mark.sim_only
def test_a_paced_program_takes_as_long_as_the_recording(driver: Driver) -> None:
    builder = TraceBuilder("slow", "RMM", timed=True)
    for number, at_us in enumerate((0, 50, 400, 900, 2_000_000, 9_000_000)):
        builder.allocate(number, 1 << 20, 0, at=10**15 + at_us * US)
    program = as_program(builder.build(), kernel_ns=0, paced=True)
    device = simulated_card(driver)
    with Pool(device=device, background=False) as pool:
        seconds = play(program, Plain(pool), device).total.wall_ns / 1e9
    # Of a pause a second at most.
    assert 2.0009 <= seconds < 2.02
    assert not steps(as_program(builder.build(), kernel_ns=0), Op.KERNEL)


@pytest.mark.sim_only
def test_waits_for_work_are_not_waited_for_twice(driver: Driver, tmp_path: Path) -> None:
    ms = 10**6
    trace = recorded(
        tmp_path,
        "+0,64,1,0,0,0",
        f"launch,1,1,0,{ms}",
        f"done,stream,1,0,{9 * ms}",
        f"launch,1,1,0,{10 * ms}",
        f"done,device,0,0,{30 * ms}",
        f"-0,1,0,{32 * ms}",
    )
    device = simulated_card(driver)
    with Pool(device=device, background=False) as pool:
        seconds = play(as_program(trace, paced=True), Plain(pool), device).total.wall_ns / 1e9
    assert 0.032 <= seconds < 0.033


# Dealing


def random_trace(blocks: int = 300) -> Trace:
    builder, chance = TraceBuilder("random", "plain"), random.Random(3)
    for block in range(blocks):
        builder.allocate(block, chance.randrange(1, 1 << 20), 0)
        if block > 20:
            builder.free(chance.choice(list(builder.live)))
    return builder.build()


def test_dealt_blocks_keep_their_order_stream_and_thread() -> None:
    trace = random_trace()
    other = dealt(trace, streams=3, threads=4, seed=5)
    assert (other.kinds, other.what, other.sizes) == (trace.kinds, trace.what, trace.sizes)
    assert (other.stream_count, other.thread_count) == (3, 4)
    owners: dict[int, int] = {}
    for kind, what, stream, thread in zip(
        other.kinds, other.what, other.streams, other.threads, strict=True
    ):
        assert owners.setdefault(what, thread) == thread
        assert stream in ((0, 1, 2) if kind == Kind.ALLOCATE else (-1,))
    assert set(other.threads) == {0, 1, 2, 3}
    assert dealt(trace, streams=3, threads=4, seed=5) == other
    assert dealt(trace, streams=3, threads=4, seed=6) != other


def test_threads_that_take_turns() -> None:
    other = dealt(random_trace(), threads=2, turn=100)
    assert [thread for thread in other.threads] == [index // 100 % 2 for index in range(len(other))]


def test_what_was_recorded_of_work_is_not_dealt(tmp_path: Path) -> None:
    trace = recorded(
        tmp_path, "+0,64,1,0,0,0", "launch,3,1,0,10", "event,7,1,0,20", "done,device,0,0,30"
    )
    program = as_program(dealt(trace, streams=2), kernel_ns=US)
    assert [step[0] for step in steps(program)] == ["allocate", "kernel", "free"]


# Any order of calls


EVENTS = st.lists(
    st.tuples(st.sampled_from(list(Kind)), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)),
    max_size=80,
)


@pytest.mark.sim_only
def test_any_recording_can_be_played(driver: Driver) -> None:
    @settings(max_examples=rounds(60, 2000), deadline=None)
    @given(EVENTS, st.booleans())
    def check(calls: list[tuple[Kind, int, int, int]], paced: bool) -> None:
        builder = TraceBuilder("any", "vramkit record", timed=True)
        made = 0
        for at, (kind, number, stream, thread) in enumerate(calls):
            by, when = f"thread {thread}", at * 60 * US
            match kind:
                case Kind.ALLOCATE:
                    builder.allocate(made, 1 << (10 + 4 * number), stream, by, when)
                    made += 1
                case Kind.FREE if builder.live:
                    key = list(builder.live)[number % len(builder.live)]
                    builder.free(key, stream if number else None, by, when)
                case Kind.LAUNCH:
                    builder.launch(number + 1, stream, by, when)
                case Kind.RECORD:
                    builder.record(number, stream, by, when)
                case Kind.WAIT:
                    builder.wait(stream, number, by, when)
                case Kind.EVENT_DONE:
                    builder.event_done(number, by, when)
                case Kind.STREAM_DONE:
                    builder.stream_done(stream, by, when)
                case Kind.DEVICE_DONE:
                    builder.device_done(by, when)
        trace = builder.build()
        program = as_program(trace, paced=paced)
        assert program.sizes == trace.sizes
        assert program.peak_in_use == trace.peak_in_use
        device = simulated_card(driver, 1)
        with Pool(device=device, background=False) as pool:
            played = play(program, Plain(pool), device)
            assert pool.check_invariants() == ""
        assert played.total.allocations == played.total.frees == trace.allocations

    check()
