"""The study's model, and one policy on one link with one kind of host.

80 layers with 80 ms of attention and 120 ms of ffn, groups of 100 and 150 MB. Its link is that of
the profile weight-streaming, 5 GB/s, or another one in its place.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from vramkit.weights import POLICIES, Group, Policy
from vramkit.weights.passes import Host
from vramkit.weights.schedule import chosen_policy

PROFILE = "weight-streaming"
MB = 1_000_000
PARTS = {"attn": 100 * MB, "ffn": 150 * MB}
SECONDS = {"attn": 0.080, "ffn": 0.120}
LAYERS = 80
ENSURE_SECONDS = 0.002
GRANULARITY = 2 << 20  # of the profile
STEADY = 2  # the pass that is taken as steady, from 0: the second one still follows a cold one
COMPUTE_MS = LAYERS * sum(SECONDS.values()) * 1e3

HOSTS: tuple[Host, ...] = ("ahead", "layer", "group")
STEPS: dict[Host, str] = {
    "ahead": "host ahead",
    "layer": "in step with the layer",
    "group": "in step with the group",
}

PROFILE_RATE = 5e9
WAITS_5_MS = PARTS["ffn"] / 0.085
"""Bytes a second with which 150 MB arrive 5 ms after the 80 ms of attention: the study's 205 ms a
layer."""
WAITS_20_MS = PARTS["ffn"] / 0.100
"""... 20 ms after: its 220 ms a layer."""
AS_COMPUTE = sum(PARTS.values()) / sum(SECONDS.values())
"""With which a layer is copied in the time that it computes, 1.25 GB/s."""
LINK_BOUND = 1e9
LINKS = (PROFILE_RATE, WAITS_5_MS, WAITS_20_MS, AS_COMPUTE, LINK_BOUND)

RINGS = {"auto_3": 3, "auto_5": 5}
"""`auto` with more memory: as many layers as depths of 2 and 4 take."""
SUBJECTS = (*POLICIES, *RINGS)

FEWEST_LAYERS = 2 * max(RINGS.values())
"""A pass goes at least twice round the largest ring; once, and the model fits it."""


class Cell(msgspec.Struct, frozen=True):
    """What is run. `ring_layers` is for policies without a depth, which fill the ring they get."""

    policy: str | Policy
    link: float = PROFILE_RATE
    host: Host = "ahead"
    streams: Literal[1, 2] = 1
    ring_layers: int = 2
    layers: int = LAYERS

    @property
    def groups(self) -> list[Group]:
        return [Group(layer, *part) for layer in range(self.layers) for part in PARTS.items()]

    @property
    def seconds(self) -> list[float]:
        return list(SECONDS.values()) * self.layers

    @property
    def bound(self) -> float:
        """Seconds a pass: the compute time, or the time of the copies."""
        return max(sum(self.seconds), sum(group.nbytes for group in self.groups) / self.link)

    @property
    def ring(self) -> int:
        """The smallest ring for the policy's depth: a pass fills it a whole number of times."""
        depth = chosen_policy(self.policy).depth
        layers = self.ring_layers if depth is None else depth + 1
        total, least = self.layers * sum(PARTS.values()), layers * sum(PARTS.values())
        rounds = max(1, total // least)
        return -(-total // rounds // GRANULARITY) * GRANULARITY


def cell_of(subject: str, link: float, host: Host, streams: Literal[1, 2], layers: int) -> Cell:
    if subject in RINGS:
        return Cell("auto", link, host, streams, RINGS[subject], layers)
    return Cell(subject, link, host, streams, layers=layers)


def link_text(link: float) -> str:
    return f"{link / 1e9:.3g} GB/s"
