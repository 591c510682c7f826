"""A case without a framework: the program of a workload, played on the subject.

The engine "native" plays it in C++, where allocators of other libraries cannot take part. "python"
plays it from Python for all of them, so that all pay the same for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from vramkit.lab.allocators.memory_calls import MemoryCalls
from vramkit.lab.allocators.memory_limited import CARD, memory_limited_program, sizing_of
from vramkit.lab.allocators.model import bytes_per_second, kernel_seconds
from vramkit.lab.allocators.programs import STEADY, program_of
from vramkit.lab.allocators.workloads import WORKLOADS
from vramkit.lab.experiment import Lab, Measured, Unmeasured
from vramkit.lab.memory_plots import with_plots
from vramkit.lab.player import Measure, Played, play
from vramkit.lab.program import Program
from vramkit.lab.small_card import small_card
from vramkit.lab.subjects.subject import Room

if TYPE_CHECKING:
    from vramkit.lab.player import Section
    from vramkit.lab.subjects.subject import Allocator, Subject

program_of_workload = lru_cache(maxsize=4)(program_of)


def measure_native(
    engine: str, workload: str, mutex: bool, subject: Subject, lab: Lab, scale: float
) -> dict[str, float]:
    """Time and memory, each in a play of its own on a new allocator; on the simulated GPU the calls
    for memory of the steady rounds too, which are those that a play without them has not."""
    rate = float(str(lab.settings["bandwidth"])) or bytes_per_second(lab.device)
    simulated = lab.driver.sim is not None
    chosen = WORKLOADS[workload]
    program, unsteady = (
        program_of_workload(each, rate, scale=scale, mutex=mutex, in_turns=simulated)
        for each in (chosen, replace(chosen, items=0))
    )
    room, calls = Room(program.peak_in_use), MemoryCalls(lab.driver)
    timed = _play(program, subject, room, lab, "time", engine, calls)
    kept = _play(program, subject, room, lab, "memory", engine)
    steady = timed.section("steady")
    values = {
        **times_of(steady, program),
        "first": round(timed.section("first").wall_ns) / 1e6,
        "kernels": kernel_seconds(program, rate, STEADY) * 1e3,
        **_memory(kept),
    }
    if simulated:
        _play(unsteady, subject, room, lab, "time", engine, calls)
        values["memory_calls"] = max(0, calls.made[0] - calls.made[1])
    return values


def measure_memory_limited(arm: str, subject: Subject, lab: Lab) -> Measured:
    """Time and memory, each in a play of its own on a fresh card, and what is drawn."""
    sizing = sizing_of(arm)
    if sizing.size is not None and not subject.needs_size:
        raise Unmeasured("takes no size: see the row without one")
    program = memory_limited_program(lab.seed)
    room = Room(program.peak_in_use, size=sizing.size)
    with small_card(lab, CARD):
        timed = _play(program, subject, room, lab, "time")
    with small_card(lab, CARD):
        kept = _play(program, subject, room, lab, "memory")

    @contextmanager
    def opened() -> Iterator[Allocator]:
        with small_card(lab, CARD), subject.open(lab.device, room) as allocator:
            yield allocator

    values = {**times_of(timed.sections[0], program), **_memory(kept)}
    return with_plots(
        values, lab, opened, lambda one: play(program, one, lab.device, measure="memory")
    )


def _play(
    program: Program,
    subject: Subject,
    room: Room,
    lab: Lab,
    measure: Measure,
    engine: str = "",
    calls: MemoryCalls | None = None,
) -> Played:
    """Without an engine: in C++ where the subject can."""
    with subject.open(lab.device, room) as allocator:
        if engine == "native" and allocator.resource is None:
            raise Unmeasured("cannot be called from C++: see the arms of the engine python")
        played = FromPython(allocator) if engine == "python" else allocator
        with calls.counted() if calls is not None else nullcontext():
            return play(program, played, lab.device, measure=measure)


class FromPython:
    """An allocator that does not tell of its interface in C++."""

    resource = None

    def __init__(self, allocator: Allocator) -> None:
        self.allocate = allocator.allocate
        self.free = allocator.free
        self.address = allocator.address
        self.held = allocator.held


def times_of(section: Section, program: Program) -> dict[str, float]:
    """In milliseconds; of the host, as the mean of the threads. Threads that take turns are one.

    In whole nanoseconds: sums of virtual times that repeat differ only after the point.
    """
    lanes = 1 if program.in_turns else program.thread_count
    allocation_ns = round(section.allocate_ns + section.free_ns)
    return {
        "time": round(section.wall_ns) / 1e6,
        "allocation": allocation_ns / 1e6 / lanes,
        "launch": round(section.launch_ns) / 1e6 / lanes,
        "wait": round(section.wait_ns) / 1e6 / lanes,
        "pair": allocation_ns / max(1, section.allocations),
    }


def _memory(played: Played) -> dict[str, float]:
    values: dict[str, float] = {"peak_in_use": played.peak_in_use}
    if played.peak_held is not None and played.average_held is not None:
        values["peak_held"] = played.peak_held
        values["average_held"] = played.average_held
        values["over_in_use"] = played.peak_held / played.peak_in_use
    return values
