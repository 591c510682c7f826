"""The phases and the extreme cases: sizes and counts, and that their order is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.support import Plain
from vramkit import Pool
from vramkit.driver import Driver
from vramkit.lab.experiment import Lab
from vramkit.lab.fragmentation import sequences
from vramkit.lab.fragmentation.nearly_full import largest_piece, measure_nearly_full
from vramkit.lab.fragmentation.programs import (
    AGAIN,
    ARMS,
    EARLY_AND_LATE,
    SECTIONS,
    Arm,
    long_run_program,
    phases_program,
    size_range_program,
    small_blocks_program,
)
from vramkit.lab.player import play
from vramkit.lab.program import OWN_STREAM, Op, Program, ProgramBuilder
from vramkit.lab.subjects import SUBJECTS

NATIVE = Path(__file__).parents[2] / "benchmarks" / "native"


def allocations(program: Program) -> dict[str, int]:
    """By section."""
    found = dict.fromkeys(program.sections, 0)
    section = program.sections[0]
    for op, what in zip(program.ops, program.what, strict=True):
        if op == Op.SECTION:
            section = program.sections[what]
        found[section] += op == Op.ALLOCATE
    return found


def test_the_generator_is_that_of_the_native_benchmark() -> None:
    random = sequences.Generator(0)
    # The first numbers of SplitMix64 from 0, as published.
    assert [random.next() for _ in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_sizes_and_counts_are_those_of_the_native_benchmark() -> None:
    phases = (NATIVE / "allocators_phases.h").read_text()
    ranges = (NATIVE / "allocators_sequences.h").read_text()

    def number(pattern: str, text: str = phases) -> int:
        found = re.search(pattern, text)
        assert found is not None, pattern
        return int(found[1])

    assert number(r"kRoundsBeforeThird = (\d+)") == sequences.ROUNDS_BEFORE_THIRD == 50
    assert number(r"kRoundsBeforeFourth = (\d+)") == sequences.ROUNDS_BEFORE_FIFTH == 100
    assert number(r"kBlocks = (\d+)") == sequences.CHURN_BLOCKS
    assert number(r"kStaying = (\d+)") == sequences.STAYING
    assert number(r"std::vector<Block> blocks\((\d+)\)") == sequences.TIMED_BLOCKS == 100
    assert number(r"random_\{(\d+)\}") == sequences.CHURN_SEED
    assert number(r"Generator random\((\d+)\)") == sequences.TIMED_SEED
    assert number(r'"256 B to 1 MiB", (\d+)', ranges) == sequences.SMALLEST
    assert number(r'"4 KiB to 64 MiB", (\d+)', ranges) == sequences.TIMED_SMALLEST
    assert number(r"4096, (\d+)u << 20", ranges) << 20 == sequences.LARGEST


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_has_the_phases_of_the_study(arm: Arm) -> None:
    program = phases_program(arm, touch=False)
    made = allocations(program)
    assert {made[f"phase_{phase}"] for phase in (1, 3, 5)} == {100}
    assert {made[f"again_{phase}"] for phase in (1, 3, 5)} == {100 * AGAIN}
    mixed = (0, 0) if arm == "skipped" else (50 * 100, 100 * 100)
    assert (made["mix_2"], made["mix_4"]) == mixed
    before = {"cold": 0, "warm": 100 * AGAIN, "grown": 1, "skipped": 0}
    assert made["rest"] == before[arm]


def test_blocks_that_stay_are_in_use_while_a_phase_is_timed() -> None:
    program = phases_program("cold", touch=False)
    live, section, found = 0, "", {}
    for op, what in zip(program.ops, program.what, strict=True):
        if op == Op.SECTION:
            section = SECTIONS[what]
            found.setdefault(section, live)
        live += (op == Op.ALLOCATE) - (op == Op.FREE)
    assert [found[f"phase_{phase}"] for phase in (1, 3, 5)] == [0, 200, 200]


def test_with_touch_each_timed_block_is_written_and_waited_for() -> None:
    program = phases_program("skipped", touch=True)
    assert program.ops.count(Op.TOUCH) == program.allocations
    assert program.ops.count(Op.WAIT_FOR_STREAM) == 3 * (1 + AGAIN)
    assert Op.TOUCH not in phases_program("skipped", touch=False).ops


def test_the_size_range_is_10_thousand_fold() -> None:
    program = size_range_program()
    assert min(program.sizes) >= 4096
    assert max(program.sizes) <= 10_000 * 4096
    assert max(program.sizes) / min(program.sizes) > 9000


def test_the_long_run_compares_the_second_tenth_of_its_rounds_with_the_last() -> None:
    assert allocations(long_run_program(40)) == {"rest": 3200, "early": 400, "late": 400}


@pytest.mark.parametrize("count", [1000, 1001])
def test_small_blocks_are_a_program_that_a_builder_would_make(count: int) -> None:
    program = small_blocks_program(count)
    builder = ProgramBuilder("small_blocks", EARLY_AND_LATE)
    for op, what, where in zip(program.ops, program.what, program.where, strict=True):
        if op == Op.SECTION:
            builder.section(EARLY_AND_LATE[what])
        elif op == Op.ALLOCATE:
            assert builder.allocate(program.sizes[what]) == what
            assert where == 0
        else:
            builder.free(what)
            assert where == OWN_STREAM
    assert builder.build() == program
    assert allocations(program)["early"] == count
    assert allocations(program)["late"] == count // 2


PROGRAMS = {
    **{arm: lambda arm=arm: phases_program(arm, touch=True, rounds=0.1) for arm in ARMS},
    "size_range": lambda: size_range_program(0.1),
    "long_run": lambda: long_run_program(10),
    "small_blocks": lambda: small_blocks_program(1000),
}


@pytest.mark.sim(data=False)
@pytest.mark.sim_only
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_checker_has_nothing_to_report_of_a_program(driver: Driver, name: str) -> None:
    program, device = PROGRAMS[name](), driver.device(0)
    with Pool(device=device, background=False) as pool:
        played = play(program, Plain(pool), device)
    assert played.total.allocations == played.total.frees == program.allocations


@pytest.mark.sim(data=False, checker=False)
@pytest.mark.sim_only
def test_virtual_times_of_the_phases_repeat_exactly(driver: Driver) -> None:
    program, device = phases_program("cold", touch=True, rounds=0.1), driver.device(0)
    walls = []
    for _ in range(2):
        with Pool(device=device, background=False) as pool:
            played = play(program, Plain(pool), device)
            walls.append([round(section.wall_ns) for section in played.sections])
    assert walls[0] == walls[1]


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 64))
def test_the_largest_piece_is_found_to_the_precision(fits: int, most: int, precision: int) -> None:
    found = largest_piece(lambda size: size <= fits, most, precision)
    assert found <= min(fits, most)
    assert min(fits, most) - found <= precision


@pytest.mark.sim(data=False, checker=False)
@pytest.mark.sim_only
def test_holes_of_a_slab_are_small_and_those_of_a_pool_can_be_joined(driver: Driver) -> None:
    lab = Lab(driver, driver.device(0), 0, 0, {})
    found = {
        name: measure_nearly_full(SUBJECTS[name], lab) for name in ("pool", "fixed_pool", "direct")
    }
    assert driver.sim is not None
    assert driver.sim.settings().capacity == 4 << 30
    assert found["fixed_pool"]["one_piece"] < 0.5 < found["pool"]["one_piece"] <= 1
    # As docs/lab-fragmentation.md has it: of 2,000 requests a third.
    assert found["fixed_pool"]["served"] == pytest.approx(0.33, abs=0.01)
    assert found["direct"]["served"] == 1
