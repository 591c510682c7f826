"""From what a player has measured to the figures of a row: units, and what is divided by what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from vramkit.driver import Driver
from vramkit.lab.allocators import native
from vramkit.lab.allocators.model import REACHED, bytes_per_second
from vramkit.lab.experiment import Lab
from vramkit.lab.fragmentation.measuring import of_a_call
from vramkit.lab.fragmentation.nearly_full import CARD, FILLED, measure_nearly_full
from vramkit.lab.fragmentation.sequences import LARGEST, filling_sizes
from vramkit.lab.played import Played, Section
from vramkit.lab.program import Op, Program
from vramkit.lab.replay import experiment as replay
from vramkit.lab.subjects import SUBJECTS

WHOLE = Section.of(
    "all",
    threads=4,
    wall_ns=10e6,
    allocate_ns=3e6,
    free_ns=1e6,
    launch_ns=8e6,
    wait_ns=16e6,
    allocations=2000,
    frees=500,
    launches=7,
)


def test_times_of_threads_are_their_mean_and_of_turns_their_sum() -> None:
    def times(*, in_turns: bool) -> dict[str, float]:
        program = SimpleNamespace(in_turns=in_turns, thread_count=4)
        return native.times_of(WHOLE, cast(Program, program))

    assert times(in_turns=False) == {
        "time": 10.0,
        "allocation": 1.0,
        "launch": 2.0,
        "wait": 4.0,
        "pair": 2000.0,  # nanoseconds: an allocation and a free of each block
    }
    assert times(in_turns=True) == {
        "time": 10.0,
        "allocation": 4.0,
        "launch": 8.0,
        "wait": 16.0,
        "pair": 2000.0,
    }


def test_a_call_of_a_replay_is_an_allocation_or_a_free() -> None:
    assert replay.times_of(Played([WHOLE], 0)) == {
        "time": 10.0,
        "call": 4e6 / 2500,
        "allocation_share": 0.4,
    }


def test_a_call_in_the_cases_of_fragmentation_is_an_allocation_or_a_free() -> None:
    assert of_a_call(WHOLE) == 4e6 / 2500


def test_the_bandwidth_is_that_of_both_edges_of_the_clock_over_the_bus() -> None:
    # An H200: 3,201 MHz, 6,144 bits: 4.9 TB/s on paper.
    found = {"MEMORY_CLOCK_RATE": 3_201_000, "GLOBAL_MEMORY_BUS_WIDTH": 6144}
    device: Any = SimpleNamespace(name="a card", attribute=found.__getitem__)
    assert bytes_per_second(device) == pytest.approx(4.917e12 * REACHED, rel=1e-3)


@pytest.mark.sim_only
@pytest.mark.sim(data=False, checker=False)
def test_the_first_round_is_not_among_the_kernels_and_the_time_of_the_others(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[Program] = []
    made = native.program_of_workload

    def remember(*arguments: Any, **named: Any) -> Program:
        programs.append(made(*arguments, **named))
        return programs[-1]

    monkeypatch.setattr(native, "program_of_workload", remember)
    lab = Lab(driver, driver.device(0), 0, 0, {"bandwidth": 1e9})
    values = native.measure_native("native", "fused", False, SUBJECTS["direct"], lab, 1.0)
    program, _ = programs  # the other one has no steady rounds
    sums, current = [0.0] * len(program.sections), 0
    for op, what in zip(program.ops, program.what, strict=True):
        if op == Op.SECTION:
            current = what
        elif op == Op.KERNEL:
            sums[current] += what / 1e6
        elif op == Op.TOUCH:
            sums[current] += program.sizes[what] / 1e9 * 1e3
    by_name = dict(zip(program.sections, sums, strict=True))
    assert by_name["steady"] > by_name["first"] > 0
    assert values["kernels"] == pytest.approx(by_name["steady"])
    # A stream of its own for each worker: its kernels take at least that long, one by one.
    assert values["time"] > values["first"] > 0
    assert values["time"] / values["first"] == pytest.approx(
        by_name["steady"] / by_name["first"], rel=0.2
    )


@pytest.mark.sim_only
@pytest.mark.sim(data=False, checker=False)
def test_the_largest_piece_is_told_as_a_part_of_all_free_memory(driver: Driver) -> None:
    lab = Lab(driver, driver.device(0), 0, 0, {})
    values = measure_nearly_full(SUBJECTS["direct"], lab)
    kept = sum(list(filling_sizes(round(CARD * FILLED) - LARGEST))[1::2])
    assert values["largest"] / values["one_piece"] == pytest.approx(CARD - kept)
    assert values["served"] == 1.0
