"""The cases: switches, and turns by amount of memory, quantum and window, on several cards."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from vramkit.lab.experiment import Case
from vramkit.lab.simulated import Changes

GIB = 1 << 30
PROGRAM = 12 * GIB
TURNS = 10
GIBS = (1, 4, 12)
QUANTA = (2, 5, 30, 60)
"""Seconds."""
WINDOWS = (1, 32, 1024)
"""Launches between two waits."""

MODES = {
    "paged": "managed memory; the first launch has page faults",
    "prefetch": "the study's remedy as written: cuMemPrefetchAsync of the winner's memory",
    "prefetch_out_in": "the loser's memory is prefetched to the host, then the winner's comes",
    "prefetch_both": "the same, on two streams at once",
    "swap_out_in": "vramkit's swap engine: chunks out, then in",
    "swap": "vramkit's swap engine, both at once: the winner's chunks come as room is made",
}


@dataclass(frozen=True)
class Machine:
    name: str
    profile: str
    add_bytes_per_s: float
    """The profile's rate of the kernel that adds."""
    changes: Changes = field(default_factory=dict, hash=False)


STUDY = Machine("16 GB/s", "memory-sharing", 332e9)
H200 = Machine("the H200's link", "h200", 3.51e12)


def without_eviction(machine: Machine) -> Machine:
    """A prefetch to a full card does nothing, instead of evicting as documented."""
    return Machine(
        f"{machine.name} without eviction",
        machine.profile,
        machine.add_bytes_per_s,
        {"managed": {"prefetch_evicts": 0}},
    )


def duplex(words: str, each_way: float) -> Machine:
    """The study's machine with another rate while copies run in both directions."""
    changes = {"link": {"duplex_bytes_per_s": each_way}}
    return Machine(f"16 GB/s {words}", STUDY.profile, STUDY.add_bytes_per_s, changes)


FULL_DUPLEX = duplex("without duplex loss", 16e9)
HALF_DUPLEX = duplex("shared by both directions", 8e9)


@dataclass(frozen=True)
class SwitchCase:
    """The second switch, or the first one: then no page has been on the host before."""

    machine: Machine
    which: Literal["first", "later"] = "later"
    more: int = 0
    """Bytes of the card beyond those of one program."""
    empty: bool = False
    """Both programs' memory is on the host when it begins."""

    @property
    def case(self) -> Case:
        room = f" with {self.more // GIB} GiB more room" if self.more else ""
        empty = " into an empty card" if self.empty else ""
        return Case(f"switch at {self.machine.name}", f"{self.which}{room}{empty}")


@dataclass(frozen=True)
class TurnsCase:
    machine: Machine
    gib: int
    quantum: float
    window: int

    @property
    def program(self) -> int:
        return self.gib * GIB

    @property
    def case(self) -> Case:
        return Case(
            f"turns of {self.gib} GiB at {self.machine.name}",
            f"quantum {self.quantum:g} s and window {self.window}",
        )


def switch_cases() -> list[SwitchCase]:
    found = []
    for machine in (STUDY, H200):
        found += [
            SwitchCase(machine, "first"),
            SwitchCase(machine),
            SwitchCase(machine, more=4 * GIB),
            SwitchCase(machine, empty=True),
        ]
    for machine in (without_eviction(STUDY), without_eviction(H200)):
        found += [SwitchCase(machine), SwitchCase(machine, more=4 * GIB)]
    return [*found, SwitchCase(FULL_DUPLEX), SwitchCase(HALF_DUPLEX)]


def turns_cases(whole: bool) -> list[TurnsCase]:
    """A part of them varies one of amount, quantum and window around 12 GiB, 30 s and 32 launches
    on the study's machine, and has that case on the other one."""
    if whole:
        return [TurnsCase(*each) for each in product((STUDY, H200), GIBS, QUANTA, WINDOWS)]
    around = [
        TurnsCase(STUDY, gib, quantum, window)
        for gib, quantum, window in product(GIBS, QUANTA, WINDOWS)
        if (gib != 12) + (quantum != 30) + (window != 32) <= 1
    ]
    return [*around, TurnsCase(H200, 12, 30, 32)]


def all_cases(whole: bool) -> dict[Case, SwitchCase | TurnsCase]:
    found: list[SwitchCase | TurnsCase] = [*switch_cases(), *turns_cases(whole)]
    return {each.case: each for each in found}
