"""One program as the policies see it, and how far it is with its turn."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum


class OutOfOrderError(ValueError):
    """A message that is not allowed in this state."""


class Phase(Enum):
    """
    stopped -> starting -> running -> stopping -> stopped
                  |                      |
                  +------> stopping      +------> running (passed over)
    """

    STOPPED = "stopped"
    """The gate is closed, and no work is in flight. Memory may be moved either way."""
    STARTING = "starting"
    """Told to bring everything in and to open the gate."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Told to close the gate; work is still in flight."""


@dataclass(eq=False)
class Program:
    client: int
    weight: float = 1.0
    priority: int = 0
    phase: Phase = Phase.STOPPED
    wants: bool = False
    """Stopped, and a thread of it waits at the gate."""
    idle: bool = False
    """Runs, and has nothing to do."""
    turn: int = 0
    turn_is_ahead: bool = False
    """`turn` is one that was filled for and has not started."""
    fresh: bool = True
    """Was told nothing yet: its turns are those of another daemon, or none."""
    turns: int = 0
    passed_over: int = 0
    unyielding: bool = False
    """Did not stop in time: left alone until its turn ends once more."""
    blocked: bool = False
    """Does not fit the card, even alone."""

    leaving_until: float = -math.inf
    """It is about to end: what it holds is free soon, unless it takes longer than that."""

    # Times.
    virtual_time: float = 0.0
    """Time that it has run, divided by its weight."""
    last_ran: float = -math.inf
    away_since: float | None = -math.inf
    """It has asked for nothing since; None: it runs or waits."""
    started: float = 0.0
    """When it was started, or runs since."""
    turn_end: float = 0.0
    progress: float = 0.0
    """When it last got or moved memory."""
    bounded: bool = False
    """`turn_end` is that of another program's turn, for which the first in the queue waits."""
    chosen: float | None = None
    """When its start was decided on; None once it runs."""
    had_to_wait_for_memory: bool = False
    stop_sent: float = 0.0
    stopped_while: Phase = Phase.RUNNING
    waiting_since: float | None = None
    waited: float = 0.0
    evictions: dict[int, Eviction] = field(default_factory=dict)
    """By card."""
    prepared: int = 0
    """Host memory that it was told to prepare, for each of its cards."""

    @property
    def on(self) -> bool:
        """Has a turn, and was not told to end it."""
        return self.phase in (Phase.STARTING, Phase.RUNNING)

    @property
    def active(self) -> bool:
        return self.wants or (self.on and not self.idle)

    def waited_until(self, now: float) -> float:
        since = self.waiting_since
        return self.waited + (0.0 if since is None else now - since)


@dataclass
class Eviction:
    """An order to move memory out. `progress`: when the counter last grew, and its value then."""

    turn: int
    bytes: int
    progress: float
    given: int
