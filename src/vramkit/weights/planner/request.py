"""What the planner asks of the child process that runs the simulated GPU, and what it answers."""

from __future__ import annotations

import msgspec

from vramkit.weights.planner.result import Plan
from vramkit.weights.planner.shape import ModelShape
from vramkit.weights.schedule import Policy


class Request(msgspec.Struct, frozen=True):
    """`seconds` of each group, or `pass_seconds` of a whole pass, or neither: then the rates of the
    profile count. `gather_bytes_per_s` is what a card gets from the others, where there are several
    `ranks`."""

    model: ModelShape
    profile: str
    budget: int | str
    policy: Policy
    policy_name: str
    ring: int | None
    prefer: tuple[int, ...]
    tokens: int | None
    batch: int | None
    seconds: tuple[float, ...] | None
    pass_seconds: float | None
    ranks: int
    gather_bytes_per_s: float | None
    compare: bool


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """One line of the child: what it does now."""

    what: str


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """Its last line: what was wrong with the request."""

    kind: str
    message: str


class Success(msgspec.Struct, frozen=True, tag="success"):
    """Its last line."""

    plan: Plan


Answer = Progress | Failure | Success
