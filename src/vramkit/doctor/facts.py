"""The facts of an examination. Sizes are bytes, times seconds, rates bytes per second."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["ok", "note", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict: what was found, why it matters, how to fix it (empty: nothing to fix)."""

    severity: Severity
    what: str
    why: str = ""
    fix: str = ""


class Spread(msgspec.Struct, frozen=True):
    """Several readings of one figure."""

    median: float
    low: float
    high: float
    samples: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the host allows. None: no limit, or unknown where the text says so."""

    cpus: int
    ram_total: int
    ram_available: int
    memory_limit: int | None  # the cgroup's, the smallest up the tree
    memory_limit_source: str
    locked_memory: int | None  # ulimit -l
    address_space: int | None  # ulimit -v
    transparent_huge_pages: str | None  # always, madvise, never; None: unknown
    huge_pages_free: int
    huge_page_bytes: int
    shared_memory_total: int | None  # /dev/shm; None: not there
    shared_memory_free: int | None
    overcommit: int | None  # vm.overcommit_memory: 0 heuristic, 1 always, 2 never

    def host_memory(self) -> int:
        """What programs here may use at most."""
        return (
            self.ram_total if self.memory_limit is None else min(self.ram_total, self.memory_limit)
        )


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    simulated: bool
    profile: str | None  # where simulated
    path: str
    version: int
    description: str
    nvidia_version: str | None  # as nvidia-smi shows it; None: unknown


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The PCIe link. None: unknown. `source` says where it was read, or why it could not be."""

    generation: int | None
    width: int | None
    max_generation: int | None
    max_width: int | None
    source: str


class Card(msgspec.Struct, frozen=True, kw_only=True):
    ordinal: int
    name: str
    uuid: str
    pci_bus_id: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_total: int
    memory_free: int
    profile_memory: int | None  # of the card that a simulated one stands for
    link: Link


class CopyRate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to copy. `each_way`: both directions ran at once, the rate is that of one."""

    what: str
    nbytes: int
    each_way: bool
    rate: Spread


class CallCost(msgspec.Struct, frozen=True, kw_only=True):
    call: str
    nbytes: int | None
    seconds: Spread


class Pinning(msgspec.Struct, frozen=True, kw_only=True):
    """One way to get pinned memory.

    `touch` is this machine's own time to fill pages, `pin` the driver call's; on the simulated GPU
    the latter is simulated, so that their sum (`rate`) means nothing and is None.
    """

    method: str
    threads: int
    nbytes: int
    touch: Spread | None
    pin: Spread
    rate: Spread | None


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    vramkit: str
    date: str
    machine: str
    limits: Limits
    driver: DriverFacts | None
    card: Card | None
    copies: list[CopyRate]
    calls: list[CallCost]
    pinning: list[Pinning]
    findings: list[Finding]

    @property
    def simulated(self) -> str | None:
        """The profile where the card was a simulated one."""
        if self.driver is None or not self.driver.simulated:
            return None
        return self.driver.profile or "unknown profile"
