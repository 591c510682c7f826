"""The cases: the study's model by link and host, beside another program, and a real decoder."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

from vramkit.lab.experiment import Case
from vramkit.lab.weights.study import HOSTS, LINKS, PROFILE_RATE, STEPS, WAITS_20_MS, link_text
from vramkit.weights.passes import Host

Budget = Literal["least memory", "half of the model"]
BUDGETS: tuple[Budget, ...] = ("least memory", "half of the model")
NEIGHBOUR_LINKS = (PROFILE_RATE, 2e9, WAITS_20_MS, 1.35e9)


@dataclass(frozen=True)
class StudyCase:
    link: float
    host: Host
    streams: Literal[1, 2] = 1

    @property
    def case(self) -> Case:
        two = " on two streams" if self.streams == 2 else ""
        return Case(link_text(self.link), STEPS[self.host] + two)


DRAWN = StudyCase(WAITS_20_MS, "layer")
"""Of the study's first timeline."""


@dataclass(frozen=True)
class NeighbourCase:
    """Another program copies beside."""

    link: float
    host: Host

    @property
    def case(self) -> Case:
        return Case(f"{link_text(self.link)} beside another program", STEPS[self.host])


@dataclass(frozen=True)
class DecoderCase:
    """A model of PyTorch, on a real card. Least memory: a ring as large as the policy needs."""

    budget: Budget

    @property
    def case(self) -> Case:
        return Case("decoder", self.budget)


AnyCase = StudyCase | NeighbourCase | DecoderCase


def all_cases(whole: bool) -> dict[Case, AnyCase]:
    """A part of them has one link beside another program, and one compute stream."""
    found: list[AnyCase] = [StudyCase(link, host) for link, host in product(LINKS, HOSTS)]
    if whole:
        found += [StudyCase(PROFILE_RATE, host, 2) for host in HOSTS]
        found += [NeighbourCase(link, "ahead") for link in NEIGHBOUR_LINKS]
        found += [NeighbourCase(WAITS_20_MS, host) for host in HOSTS[1:]]
    else:
        found.append(NeighbourCase(WAITS_20_MS, "ahead"))
    found += [DecoderCase(budget) for budget in BUDGETS]
    return {each.case: each for each in found}
