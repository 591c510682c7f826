"""The experiment `vramkit replay`: a trace is a workload, and what may be otherwise is an arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramkit import Pool
from vramkit.lab.experiment import Case, Finding, Lab, Measured, Setting, Settings, Unmeasured
from vramkit.lab.memory_plots import peak_map
from vramkit.lab.player import Played, play
from vramkit.lab.replay import findings, page
from vramkit.lab.replay.cards import Cards
from vramkit.lab.replay.settings import (
    SETTINGS,
    SMALLEST,
    WITH_LIMIT,
    cards,
    program_of,
    trace_named,
    traces,
)
from vramkit.lab.result import Quantity, Report
from vramkit.lab.subjects import SUBJECTS, Room, missing
from vramkit.lab.watched import Watched, pool_at_peak

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.lab.program import Program
    from vramkit.lab.subjects import Subject
    from vramkit.lab.traces import Trace
    from vramkit.report.blocks import Block

QUANTITIES = {
    "held": Quantity("held", "bytes"),
    "held_ratio": Quantity("held / in use", "ratio"),
    "in_use": Quantity("in use", "bytes", "neither"),
    "average_held": Quantity("on average", "bytes"),
    "smallest_card": Quantity("smallest card", "bytes"),
    "fragmentation": Quantity("fragmented", "share"),
    "moved": Quantity("moved", "bytes"),
    "time": Quantity("time", "ms"),
    "call": Quantity("a call", "ns"),
    "native_call": Quantity("a call in C++", "ns"),
    "allocation_share": Quantity("in calls", "share"),
}


class Replay:
    name = "replay"
    title = "a recorded program on every allocator"
    question = (
        "What would each allocator have held for these programs, and on which card would they have "
        "fitted? The blocks, threads and streams are those of the recording, in its order. Kernels "
        "are stand-ins, so that a block that is freed on one stream is not free for others at once."
    )
    quantities = QUANTITIES
    settings: Sequence[Setting] = SETTINGS

    def simulator(self, settings: Settings) -> dict[str, object]:
        return {"data": "off", "checker": "off", "capacity": settings["capacity"]}

    def subjects(self, driver: Driver) -> dict[str, str]:
        return missing(driver)

    def cases(self, settings: Settings) -> list[Case]:
        arms = ["", *cards(settings)]
        if float(str(settings["limit_percent"])) >= 0:
            arms.append(WITH_LIMIT)
        if settings["smallest"]:
            arms.append(SMALLEST)
        return [Case(name, arm) for name in traces(settings) for arm in arms]

    def measure(self, case: Case, subject: str, lab: Lab) -> Measured:
        trace, one = trace_named(lab.settings, case.workload), SUBJECTS[subject]
        if case.arm == "":
            return _measured(trace, one, lab)
        if case.arm == WITH_LIMIT:
            return _limited(trace, one, lab)
        program, simulated = program_of(trace, lab.settings, lab.seed), Cards.beside(lab.driver)
        if case.arm == SMALLEST:
            return Measured({"smallest_card": simulated.smallest(program, one)})
        simulated.run(program, one, cards(lab.settings)[case.arm])
        return Measured({"in_use": program.peak_in_use})

    def findings(self, report: Report) -> list[Finding]:
        return findings.findings(report)

    def blocks(self, report: Report) -> list[Block]:
        return page.blocks(report)


REPLAY = Replay()


def _measured(trace: Trace, subject: Subject, lab: Lab) -> Measured:
    """Memory along the program, then the time, which nothing reads the allocator in."""
    limit = int(str(lab.settings["limit"])) or None
    # The recording's pauses cost nothing in virtual time; on a card they would take as long.
    paced = program_of(trace, lab.settings, lab.seed, paced=lab.driver.sim is not None)
    values, watched = _memory(paced, subject, lab, limit)
    drawings: list[Block] = []
    if lab.repetition == 0:
        drawings = [page.about(trace, lab.settings)]
        snapshot = pool_at_peak(
            lambda: subject.open(lab.device, _room(paced, subject, limit)),
            lambda allocator: play(paced, allocator, lab.device, measure="memory"),
            watched,
        )
        if snapshot is not None:
            drawings.append(peak_map(snapshot))
            values["fragmentation"] = float(snapshot.stats["fragmentation_rate"])
    values |= _time(program_of(trace, lab.settings, lab.seed), subject, lab, limit)
    return Measured(values, watched.series(), drawings)


def _time(program: Program, subject: Subject, lab: Lab, limit: int | None) -> dict[str, float]:
    with subject.open(lab.device, _room(program, subject, limit)) as allocator:
        played = play(program, allocator, lab.device)
    if not played.native or lab.driver.sim is not None:
        return times_of(played)
    # On a card, calls from Python are compared with those of others, which are from Python too.
    with subject.open(lab.device, _room(program, subject, limit)) as allocator:
        called = play(program, Watched(allocator), lab.device)
    return {**times_of(called), "native_call": times_of(played)["call"]}


def _memory(
    program: Program, subject: Subject, lab: Lab, limit: int | None
) -> tuple[dict[str, float], Watched]:
    with subject.open(lab.device, _room(program, subject, limit)) as allocator:
        watched = Watched(allocator)
        played = play(program, watched, lab.device, measure="memory")
        values: dict[str, float] = {"in_use": played.peak_in_use}
        if played.peak_held is not None and played.average_held is not None:
            values["held"] = played.peak_held
            values["held_ratio"] = played.peak_held / max(played.peak_in_use, 1)
            values["average_held"] = played.average_held
        if isinstance(allocator.resource, Pool):
            values["moved"] = allocator.resource.stats().remapped_bytes
    return values, watched


def _limited(trace: Trace, subject: Subject, lab: Lab) -> Measured:
    program = program_of(trace, lab.settings, lab.seed, paced=lab.driver.sim is not None)
    if not subject.can_be_limited or subject.needs_size:
        raise Unmeasured("what it takes cannot be limited, or is its size anyway")
    values, _ = _memory(program, subject, lab, None)
    if "held" not in values:
        raise Unmeasured("it does not say what it holds")
    most = int(values["held"] * (1 + float(str(lab.settings["limit_percent"])) / 100))
    values, _ = _memory(program, subject, lab, most)
    return Measured(values)


def _room(program: Program, subject: Subject, limit: int | None) -> Room:
    if limit is not None and not subject.can_be_limited:
        raise Unmeasured("it has no limit to be set")
    return Room(program.peak_in_use, limit=limit)


def times_of(played: Played) -> dict[str, float]:
    total = played.total
    inside = total.allocate_ns + total.free_ns
    return {
        "time": total.wall_ns / 1e6,
        "call": inside / max(total.allocations + total.frees, 1),
        "allocation_share": inside / total.wall_ns if total.wall_ns else 0.0,
    }
