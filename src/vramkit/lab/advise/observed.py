"""What one recorded run says about a program, as the figures that advice is derived from."""

from __future__ import annotations

from typing import Literal

import msgspec

from vramkit.lab.program import Op, Program

Level = Literal["driver", "tensors"]
"""What the trace recorded: what the driver was asked for, or what a framework's allocator was."""


class Timing(msgspec.Struct, frozen=True):
    """When things happened, of a trace that says so."""

    seconds: float
    """From the first call to the last."""
    idle_seconds: float
    """In which nothing was queued on the card for certain: from the moment the host knew all work
    to be complete to the next launch. The card may have been idle longer."""
    allocations: int
    """Calls that asked the driver for memory."""
    frees: int
    launches: int

    @property
    def idle_share(self) -> float:
        return self.idle_seconds / self.seconds if self.seconds > 0 else 0.0


class Observed(msgspec.Struct, frozen=True):
    """One process on one card. Sizes in bytes."""

    name: str
    level: Level
    allocations: int
    peak: int
    """Most that was in use at a time."""
    lasting: int
    """Least that was in use in the middle half of the run: weights, optimizer state, caches that
    stay. Never more than the peak."""
    held: int | None
    """Most that the program's own allocator held, where the trace tells."""
    timing: Timing | None

    @property
    def changing(self) -> int:
        """What comes and goes: activations, gradients, work space."""
        return self.peak - self.lasting


def observe(
    program: Program, *, level: Level, held: int | None = None, timing: Timing | None = None
) -> Observed:
    return Observed(
        program.name,
        level,
        program.allocations,
        program.peak_in_use,
        lasting_bytes(program),
        held,
        timing,
    )


def lasting_bytes(program: Program) -> int:
    """Of the allocations and frees, the first and the last quarter do not count: there a program
    starts and ends."""
    events = [
        (op, block)
        for op, block in zip(program.ops, program.what, strict=True)
        if op in (Op.ALLOCATE, Op.FREE)
    ]
    in_use, least = 0, program.peak_in_use
    for index, (op, block) in enumerate(events):
        size = program.sizes[block]
        in_use += size if op == Op.ALLOCATE else -size
        if len(events) <= 4 * index < 3 * len(events):
            least = min(least, in_use)
    return least
