"""What the daemon tells of itself: the answer to `status`, read by all commands that show it."""

from __future__ import annotations

import msgspec


class ProgramOnCard(msgspec.Struct, frozen=True):
    """Bytes of one program on one card, by where they are."""

    card: int
    held: int
    """What it may use now."""
    limit: int
    resident: int
    swapped: int
    unbacked: int
    unswappable: int
    out_bytes: int
    in_bytes: int
    launches: int
    gate_wait_seconds: float


class ProgramStatus(msgspec.Struct, frozen=True):
    client: int
    pid: int
    uid: int
    name: str
    state: str
    """running, idle, starting, stopping, waiting, stopped; ending: its process is
    about to end; lost: it runs and is not connected."""
    mode: str
    weight: float
    priority: int
    memory_limit: int
    turns: int
    passed_over: int
    waited_seconds: float
    """For its turns."""
    blocked: bool
    messages: list[str]
    cards: list[ProgramOnCard]


class CardStatus(msgspec.Struct, frozen=True):
    card: int
    uuid: str
    total: int
    budget: int
    held: int
    free: int
    others: int | None
    """What programs that are not ours use, by NVML; None: unknown."""
    owner: int | None = None
    """The user who alone has it: of a simulated card, where the daemon serves all users."""


class DaemonStatus(msgspec.Struct, frozen=True):
    pid: int
    socket: str
    version: str
    system: bool
    uptime_seconds: float
    quantum_seconds: float
    switch_seconds: float | None
    refused: int
    """Connections that were ended for what they sent, or for who they were."""


class Status(msgspec.Struct, frozen=True):
    daemon: DaemonStatus
    cards: list[CardStatus]
    programs: list[ProgramStatus]
