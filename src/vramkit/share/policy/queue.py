"""Weighted round robin: who has run least for its weight comes first.

Each program has a virtual time: what it has run, divided by its weight. The least goes first, so
that shares of time converge to weights. Higher priorities come before lower ones whatever they
have run. Who asks for nothing saves nothing up: on return it stands level with those who stayed.
"""

from __future__ import annotations

from collections.abc import Iterable

from vramkit.share.policy.program import Phase, Program


def place(program: Program) -> tuple[float, float, float, int]:
    """The sort key: the first in the queue has the smallest."""
    return (-program.priority, program.virtual_time, program.last_ran, program.client)


def charge(programs: Iterable[Program], since: float, now: float) -> None:
    """The way in and out is charged too: who moves much, or does not answer, uses the card."""
    for program in programs:
        if program.phase is not Phase.STOPPED and not program.idle:
            program.virtual_time += (now - since) / program.weight
            program.last_ran = now


def welcome_back(program: Program, programs: Iterable[Program], now: float, least: float) -> None:
    """`least`: an absence shorter than that is none."""
    since, program.away_since = program.away_since, None
    if since is None or now - since < least:
        return
    others = [each.virtual_time for each in programs if each.active and each is not program]
    if others:
        program.virtual_time = max(program.virtual_time, min(others))
