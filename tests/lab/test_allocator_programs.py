"""Workloads of the allocators experiment: what they ask for, and that their order is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.lab.support import Plain
from vramkit import Pool
from vramkit.driver import Driver
from vramkit.lab.allocators.engine import WIDTH, Engine
from vramkit.lab.allocators.memory_limited import (
    AVERAGE,
    PEAK,
    average_in_use,
    memory_limited_program,
)
from vramkit.lab.allocators.model import bytes_per_second, kernel_seconds
from vramkit.lab.allocators.programs import SECTIONS, STEADY, program_of
from vramkit.lab.allocators.workloads import (
    CHURN,
    CONCURRENT,
    EXTREME,
    FUSED,
    INTERLEAVED,
    SIMPLE,
    SMALL,
    UNFUSED,
    WORKLOADS,
    Workload,
)
from vramkit.lab.player import play
from vramkit.lab.program import Op, Program

RATE = 3e12


def steps(program: Program, op: Op, section: int = STEADY) -> list[int]:
    """What the steps of a kind have, in one section."""
    found, current = [], 0
    for each, what in zip(program.ops, program.what, strict=True):
        if each == Op.SECTION:
            current = what
        elif each == op and current == section:
            found.append(what)
    return found


def test_small_frequent_allocations_are_200_of_50_thousand_rows_on_each_stream() -> None:
    program = program_of(SMALL, RATE)
    made = steps(program, Op.ALLOCATE)
    assert {program.sizes[block] for block in made} == {50_000 * WIDTH}
    assert len(made) == SMALL.workers * 200 * 3
    assert len(steps(program, Op.FREE)) == len(made)


def test_each_stream_of_extreme_sizes_has_another_size_from_100_thousand_to_10_million() -> None:
    rows = [EXTREME.rows_of(worker, 1.0) for worker in range(EXTREME.workers)]
    assert (min(rows), max(rows), len(set(rows))) == (100_000, 10_000_000, EXTREME.workers)


@pytest.mark.parametrize(("workload", "streams"), [(CONCURRENT, 32), (CHURN, 8), (INTERLEAVED, 4)])
def test_a_program_has_the_streams_of_its_workload(workload: Workload, streams: int) -> None:
    assert program_of(workload, RATE).stream_count == streams


def test_churn_is_in_columns_of_500_thousand_rows() -> None:
    program = program_of(CHURN, RATE)
    assert set(program.sizes) == {500_000 * WIDTH}


def test_with_a_mutex_each_item_and_its_wait_are_inside_it() -> None:
    program = program_of(SIMPLE, RATE, mutex=True)
    locks = steps(program, Op.LOCK)
    assert len(locks) == len(steps(program, Op.UNLOCK)) == SIMPLE.workers * SIMPLE.items
    holder, before = None, Op.LOCK
    for op, thread in zip(program.ops, program.threads, strict=True):
        if op == Op.LOCK:
            assert holder is None
            holder = thread
        elif op == Op.UNLOCK:
            assert before == Op.WAIT_FOR_STREAM
            holder = None
        elif holder is not None:
            assert thread == holder
        before = Op(op)


def test_without_a_mutex_the_workers_take_turns_between_operations() -> None:
    program = program_of(SIMPLE, RATE)
    assert not steps(program, Op.LOCK)
    threads = [
        each for each, op in zip(program.threads, program.ops, strict=True) if op == Op.TOUCH
    ]
    assert sum(a != b for a, b in pairwise(threads)) > len(threads) / 4


def test_interleaved_blocks_are_freed_on_another_stream_than_that_of_their_allocation() -> None:
    program = program_of(INTERLEAVED, RATE)
    own: dict[int, int] = {}
    freed = Counter[bool]()
    section = 0
    for op, what, where in zip(program.ops, program.what, program.where, strict=True):
        if op == Op.SECTION:
            section = what
        elif op == Op.ALLOCATE:
            own[what] = where
        elif op == Op.FREE and section == STEADY:
            freed[own[what] != where] += 1
    assert freed[False] == 0
    assert freed[True] == INTERLEAVED.items * 4


def test_fusing_leaves_out_temporaries_and_time_of_kernels() -> None:
    fused, unfused = program_of(FUSED, RATE), program_of(UNFUSED, RATE)
    made = [len(steps(each, Op.ALLOCATE)) for each in (fused, unfused)]
    assert made[1] - made[0] == FUSED.items * 5
    assert kernel_seconds(fused, RATE, STEADY) < kernel_seconds(unfused, RATE, STEADY)


def test_the_scale_is_of_rows() -> None:
    small, large = (program_of(CHURN, RATE, scale=scale) for scale in (0.1, 1.0))
    assert len(small) == len(large)
    assert {size * 10 for size in small.sizes} == set(large.sizes)


def test_kernels_last_as_long_as_the_card_needs_for_their_bytes(driver: Driver) -> None:
    rate = bytes_per_second(driver.device(0))
    assert 1e11 < rate < 2e13
    slow, fast = (program_of(FUSED, each) for each in (rate / 2, rate))
    ratio = kernel_seconds(slow, rate / 2, STEADY) / kernel_seconds(fast, rate, STEADY)
    assert 1.5 < ratio <= 2.0  # but for the shortest


def test_the_memory_limited_case_needs_3_5_gib_at_the_peak_and_1_on_average() -> None:
    program = memory_limited_program(0)
    assert program.peak_in_use == PEAK
    assert average_in_use(program) == pytest.approx(AVERAGE, rel=0.05)


def test_all_subjects_get_the_same_random_sizes_from_one_seed() -> None:
    assert memory_limited_program(3).sizes == memory_limited_program(3).sizes
    assert memory_limited_program(3).sizes != memory_limited_program(4).sizes


def few(workload: Workload) -> Workload:
    return replace(workload, items=3, workers=min(workload.workers, 8))


@pytest.mark.sim(data=False)
@pytest.mark.sim_only
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_checker_has_nothing_to_report_of_a_workload(driver: Driver, name: str) -> None:
    workload, device = few(WORKLOADS[name]), driver.device(0)
    for arm in workload.arms:
        program = program_of(workload, RATE, scale=0.02, mutex=bool(arm), in_turns=True)
        with Pool(device=device, background=False) as pool:
            played = play(program, Plain(pool), device)
        assert played.section(SECTIONS[STEADY]).allocations == len(steps(program, Op.ALLOCATE))


@pytest.mark.sim(data=False)
@pytest.mark.sim_only
@pytest.mark.expects_reports
def test_the_checker_reports_a_column_that_is_handed_over_without_an_event(driver: Driver) -> None:
    """So that the test above could fail."""

    def unordered(engine: Engine, columns: list[int]) -> Iterator[None]:
        other, made = engine.on(1), engine.add(*columns)
        other.free(made)
        yield

    program = program_of(replace(few(INTERLEAVED), item=unordered), RATE, in_turns=True)
    device = driver.device(0)
    with Pool(device=device, background=False) as pool:
        play(program, Plain(pool), device)
    assert driver.sim is not None
    assert driver.sim.reports()


@pytest.mark.sim(data=False, checker=False)
@pytest.mark.sim_only
def test_virtual_times_of_threads_that_take_turns_repeat_exactly(driver: Driver) -> None:
    program = program_of(few(SIMPLE), RATE, in_turns=True)
    device = driver.device(0)
    walls = []
    for _ in range(2):
        with Pool(device=device, background=False) as pool:
            sections = play(program, Plain(pool), device).sections
            walls.append([round(section.wall_ns) for section in sections])
    assert walls[0] == walls[1]
    assert walls[0][STEADY] > 0
