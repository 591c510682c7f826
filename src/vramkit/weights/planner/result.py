"""What a plan says. All of it was predicted on the simulated GPU: no figure was measured."""

from __future__ import annotations

from typing import Literal

import msgspec

from vramkit.report.blocks import Timeline
from vramkit.weights.planner.arithmetic import Rates

SAME = 0.001
"""Times that differ by less than this share are taken as equal."""


Limit = Literal["compute", "link", "gather"]


class Prediction(msgspec.Struct, frozen=True, tag="prediction"):
    """One way to run the model: bytes on the card, and the seconds of a pass."""

    policy: str
    budget: int
    ring: int | None
    """As in offload(): the most that the ring may take; None: two layers."""
    ring_bytes: int
    resident_bytes: int
    kept_bytes: int
    device_bytes: int
    """Of the budget: ring, residents, what is kept, and shares on their way."""
    streamed_bytes: int
    """In a pass."""
    first_pass_s: float
    """With the residents on the card and an empty ring."""
    pass_s: float
    """Each later one."""
    computed_s: float
    """Of a pass, the time in which the card computes."""
    link_s: float
    """What the streamed bytes take on the link, or a card's share of them on its own."""
    bound_s: float
    """The largest of these: with these bytes to stream no schedule is faster."""
    limit: Limit
    link_utilisation: float
    """The part of a pass in which the link would be busy at its full rate."""
    ranks: int = 1
    """Cards that stream the model together, each a share of it."""
    sent_bytes: int = 0
    """Of a pass, over the link of each card."""
    gather_s: float = 0.0
    """What the shares of the other cards take."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A policy that the budget does not allow."""

    policy: str
    why: str


ComputeFrom = Literal["profile", "measured pass", "given"]


class Plan(msgspec.Struct, frozen=True):
    """The result of plan(). Without a comparison, what stands behind `chosen` is empty."""

    profile: str
    card: str
    link_bytes_per_s: float
    model: str
    notes: tuple[str, ...]
    layers: int
    groups: int
    weight_bytes: int
    tokens: int | None
    batch: int | None
    compute_from: ComputeFrom
    rates: Rates | None
    """Those of the profile, where they were used: for bf16."""
    gather_bytes_per_s: float | None
    """As given; None: there is one card."""
    verdict: str
    chosen: Prediction
    policies: tuple[Prediction | Refused, ...] = ()
    splits: tuple[Prediction, ...] = ()
    """By size of the ring, with the same budget."""
    best_split: int | None = None
    budgets: tuple[Prediction, ...] = ()
    """From the least to all resident."""
    timeline: Timeline | None = None
    """Of the first layers of a pass, for a report; None where nothing is streamed."""
    simulated: bool = True
