"""Programs that cannot be played: each is refused with its reason, before anything runs."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from lab.support import MIB, Noted, pairs
from vramkit.driver import Device, Driver
from vramkit.lab.player import play
from vramkit.lab.program import Op, Program


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


def column(program: Program, name: str, place: int, value: int) -> Program:
    changed = array(getattr(program, name).typecode, getattr(program, name))
    changed[place] = value
    return replace(program, **{name: changed})


def of_two(**columns: list[int]) -> Program:
    """Two threads; a column that is not given is all zero."""
    given = {"ops": "B", "threads": "H", "what": "q", "where": "i"}
    length = len(columns["ops"])
    made = {name: array(kind, columns.get(name, [0] * length)) for name, kind in given.items()}
    blocks = columns["ops"].count(Op.ALLOCATE)
    sizes = array("q", [256] * blocks)
    return Program(
        "bad",
        **made,
        sizes=sizes,
        stream_count=1,
        event_count=1,
        thread_count=2,
        peak_in_use=256,
        sections=("all", "more"),
    )


GOOD = pairs(1)  # ALLOCATE, TOUCH, KERNEL, FREE, WAIT_FOR_DEVICE
A, F, T, L, U = Op.ALLOCATE, Op.FREE, Op.TOUCH, Op.LOCK, Op.UNLOCK
BAD = {
    "step 2: has operation 99": column(GOOD, "ops", 2, 99),
    "step 4: WAIT_FOR_DEVICE names thread 1; the program has 1": column(GOOD, "threads", 4, 1),
    "step 1: TOUCH names block 1; the program has 1": column(GOOD, "what", 1, 1),
    "step 1: TOUCH names block -1": column(GOOD, "what", 1, -1),
    "step 0: ALLOCATE names stream 1; the program has 1": column(GOOD, "where", 0, 1),
    "step 2: KERNEL names stream -1": column(GOOD, "where", 2, -1),
    "step 3: FREE names stream -2": column(GOOD, "where", 3, -2),
    "step 2: KERNEL of -1 ns": column(GOOD, "what", 2, -1),
    "step 2: RECORD names event 1000; the program has 0": column(GOOD, "ops", 2, Op.RECORD),
    "step 1: ALLOCATE of block 0, which was allocated before": column(GOOD, "ops", 1, A),
    "step 0: TOUCH of block 0, which is not in use": column(GOOD, "ops", 0, T),
    "step 3: FREE of block 0, which is not in use": column(GOOD, "ops", 1, F),
    "block 0 is never freed": column(GOOD, "ops", 3, Op.WAIT_FOR_DEVICE),
    "block 1 is never allocated": replace(GOOD, sizes=array("q", [MIB, MIB])),
    "block 0 has 0 bytes": replace(GOOD, sizes=array("q", [0])),
    "block 0 has 1099511627777 bytes": replace(GOOD, sizes=array("q", [(1 << 40) + 1])),
    "have 5, 5, 4 and 5 steps": replace(GOOD, what=GOOD.what[:-1]),
    "0 threads; it may have 1 to 65536": replace(GOOD, thread_count=0),
    "16777217 events": replace(GOOD, event_count=(1 << 24) + 1),
    "0 sections": replace(GOOD, sections=()),
    "step 1: LOCK while the thread holds": of_two(ops=[L, L]),
    "step 0: UNLOCK while the thread does not hold": of_two(ops=[U]),
    "step 1: LOCK while another thread": replace(
        of_two(ops=[L, L, U, U], threads=[0, 1, 0, 1]), in_turns=True
    ),
    "holds the mutex at the end": of_two(ops=[L]),
    "step 2: FREE of block 0 waits for another thread": of_two(
        ops=[A, L, F, U], threads=[0, 1, 1, 1]
    ),
    "step 3: FREE of block 0 waits for another thread": of_two(
        ops=[A, T, L, F, U], threads=[0, 1, 0, 0, 0]
    ),
    "step 2: WAIT for event 0 waits for another thread": of_two(
        ops=[Op.RECORD, L, Op.WAIT, U], threads=[0, 1, 1, 1]
    ),
    "step 2: WAIT of event 0, for which another thread waits": of_two(
        ops=[Op.RECORD, Op.RECORD, Op.WAIT], threads=[0, 1, 0]
    ),
    "step 0: SECTION names section 2": of_two(ops=[Op.SECTION], what=[2]),
    "step 1: WAIT_FOR_DEVICE stands between": of_two(ops=[Op.SECTION, Op.WAIT_FOR_DEVICE]),
    "step 1: SECTION of section 0 by thread 0": of_two(ops=[Op.SECTION, Op.SECTION]),
    "step 1: SECTION of section 1 by thread 1": of_two(
        ops=[Op.SECTION, Op.SECTION], threads=[0, 1], what=[0, 1]
    ),
    "the last SECTION lacks": of_two(ops=[Op.SECTION]),
    "step 1: SECTION while the thread holds": of_two(ops=[L, Op.SECTION]),
}


@pytest.mark.parametrize("words", BAD)
def test_a_bad_program_is_refused_before_anything_runs(device: Device, words: str) -> None:
    noted = Noted(device)
    with pytest.raises(ValueError) as raised:
        play(BAD[words], noted, device)
    assert words in str(raised.value)
    assert noted.calls == []


def test_columns_of_another_type_are_refused(device: Device) -> None:
    program = replace(GOOD, threads=array("I", GOOD.threads))
    with pytest.raises(TypeError, match="elements of type 'I'; they must be of type 'H'"):
        play(program, Noted(device), device)


def test_another_measure_is_refused(device: Device) -> None:
    with pytest.raises(ValueError, match='it may be "time" or "memory"'):
        play(GOOD, Noted(device), device, measure="both")  # type: ignore[arg-type]


def test_operations_have_the_numbers_and_names_of_the_native_check(device: Device) -> None:
    """Each of them is told by its name where it is wrong; the checks above name the rest."""
    for op in Op:
        program = of_two(ops=[op], threads=[7])
        with pytest.raises(ValueError, match=f"step 0: {op.name} names thread 7"):
            play(program, Noted(device), device)
