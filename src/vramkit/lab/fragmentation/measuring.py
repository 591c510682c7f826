"""One repetition of each case."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from vramkit.lab.experiment import Case, Lab, Measured
from vramkit.lab.fragmentation.nearly_full import measure_nearly_full
from vramkit.lab.fragmentation.programs import (
    PHASES,
    Arm,
    long_run_program,
    phases_program,
    size_range_program,
    small_blocks_program,
)
from vramkit.lab.memory_plots import with_plots
from vramkit.lab.player import Played, Section, play
from vramkit.lab.program import Program
from vramkit.lab.subjects.subject import Room

if TYPE_CHECKING:
    from vramkit.lab.subjects.subject import Subject

ALONE, TOUCH = "alone", "touch"
DRAWN = ALONE, "cold"
"""The phases as in the study: memory along them is drawn."""
READ_EVERY = 64
"""Of small blocks: some libraries take longer to say what they hold than to allocate. That misses
less than 64 blocks of 8 KiB."""


def measure_case(case: Case, subject: Subject, lab: Lab) -> dict[str, float] | Measured:
    scale = float(str(lab.settings["scale"]))
    match case.workload:
        case "nearly_full":
            return measure_nearly_full(subject, lab)
        case "size_range":
            return _extreme(size_range_program(scale), subject, lab)
        case "long_run":
            return _extreme(long_run_program(int(str(lab.settings["rounds"]))), subject, lab)
        case "small_blocks":
            count = int(str(lab.settings["blocks"])) or default_blocks(lab)
            values = _extreme(small_blocks_program(count), subject, lab, READ_EVERY)
            return {**values, "blocks": count}
    touch = case.workload == TOUCH
    program = phases_program(cast(Arm, case.arm), touch=touch, rounds=scale)
    timed, kept = _both(program, subject, lab)
    cost = _touched if touch else _allocated
    values = {
        f"{name}_{phase}": cost(timed.section(f"{name}_{phase}"))
        for phase in PHASES
        for name in ("phase", "again")
    }
    mixed = [timed.section(name) for name in ("mix_2", "mix_4")]
    values |= {each.name: of_a_call(each) for each in mixed if each.allocations}
    values |= _memory(kept)
    if (case.workload, case.arm) != DRAWN:
        return values
    room = Room(program.peak_in_use)
    return with_plots(
        values,
        lab,
        lambda: subject.open(lab.device, room),
        lambda one: play(program, one, lab.device, measure="memory"),
    )


def default_blocks(lab: Lab) -> int:
    """A million. Some calls of the simulated GPU take longer with each block that is in use."""
    return 1_000_000 if lab.driver.sim is None else 10_000


def _extreme(program: Program, subject: Subject, lab: Lab, read_every: int = 1) -> dict[str, float]:
    timed, kept = _both(program, subject, lab, read_every)
    early, late = timed.section("early"), timed.section("late")
    return {"early": of_a_call(early), "late": of_a_call(late), **_memory(kept)}


def _both(
    program: Program, subject: Subject, lab: Lab, read_every: int = 1
) -> tuple[Played, Played]:
    """Time and memory, each on a new allocator."""
    room = Room(program.peak_in_use)
    with subject.open(lab.device, room) as allocator:
        timed = play(program, allocator, lab.device)
    with subject.open(lab.device, room) as allocator:
        return timed, play(program, allocator, lab.device, measure="memory", read_every=read_every)


def _allocated(section: Section) -> float:
    """Nanoseconds of an allocation."""
    return round(section.allocate_ns) / section.allocations


def _touched(section: Section) -> float:
    """Nanoseconds of an allocation, the launch of a kernel that writes the block, and the card's
    work until the last one is written."""
    return round(section.wall_ns) / section.allocations


def of_a_call(section: Section) -> float:
    calls = section.allocations + section.frees
    return round(section.allocate_ns + section.free_ns) / max(1, calls)


def _memory(played: Played) -> dict[str, float]:
    if played.peak_held is None or played.average_held is None:
        return {}
    return {
        "peak_held": played.peak_held,
        "average_held": played.average_held,
        "over_in_use": played.peak_held / played.peak_in_use,
    }
