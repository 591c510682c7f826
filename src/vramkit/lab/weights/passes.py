"""Runs passes of a cell: on a simulated card with its link, or on a real one with scaled times.

On a real card the times of the layers are scaled by the ratio of the cell's link to the card's own,
so that copies take the same part of a layer as in the study. What can be compared is the ratio to
the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vramkit.lab.experiment import Measured
from vramkit.lab.simulated import Changes, fresh_card
from vramkit.lab.weights.link import link_rate
from vramkit.lab.weights.study import (
    ENSURE_SECONDS,
    PARTS,
    PROFILE,
    PROFILE_RATE,
    STEADY,
    Cell,
)
from vramkit.weights import WeightManager
from vramkit.weights.passes import Passes, PassTime
from vramkit.weights.recording import RecordedPass, record_passes
from vramkit.weights.schedule import chosen_policy

if TYPE_CHECKING:
    from vramkit.driver import Device
    from vramkit.lab.experiment import Lab

DRAWN_LAYERS = 3
DRAWN_SECONDS = 0.66
"""The longest that so many layers take of the study's policies: one scale for all."""


def measure(cell: Cell, lab: Lab) -> dict[str, float]:
    """A cold and a steady pass."""
    if lab.driver.sim is not None:
        return _recorded(cell, record(cell, lab))
    rate = link_rate(lab.device)
    scale = cell.link / rate
    with run_passes(cell, lab.device, scale) as run:
        times = [run.one() for _ in range(STEADY + 1)]
    return _values(cell, times, cell.bound * scale)


def measure_drawn(cell: Cell, lab: Lab, title: str) -> Measured:
    """The same on the simulated GPU, with what ran when in some layers of the steady pass."""
    passes = record(cell, lab)
    first = max(0, (cell.layers - DRAWN_LAYERS) // 2)
    layers = range(first, min(first + DRAWN_LAYERS, cell.layers))
    drawn = passes[STEADY].timeline(title, layers=layers, scale=DRAWN_SECONDS)
    return Measured(_recorded(cell, passes), drawings=[drawn])


def _recorded(cell: Cell, passes: list[RecordedPass]) -> dict[str, float]:
    copied, first = passes[STEADY].copied_beside(), passes[0].copied_beside(range(1))
    return {
        **_values(cell, [each.time for each in passes], cell.bound),
        **{f"{part}_bytes": copied[part] / cell.layers for part in PARTS},
        **{f"first_{part}_bytes": first[part] for part in PARTS},
    }


def _values(cell: Cell, times: list[PassTime], bound: float) -> dict[str, float]:
    cold, steady = times[0], times[STEADY]
    return {
        "steady": steady.wall * 1e3,
        "over_bound": steady.wall / bound,
        "cold": cold.wall * 1e3,
        "bound": bound * 1e3,
        "blocked": steady.host_blocked / cell.layers * 1e3,
        "layer": steady.wall / cell.layers * 1e3,
        "idle": steady.stalled / cell.layers * 1e3,
        "ring": cell.ring,
        "misses": steady.misses,
    }


def record(cell: Cell, lab: Lab) -> list[RecordedPass]:
    """What ran when, on the simulated GPU."""
    with _managed(cell, simulated_card(cell, lab)) as manager:
        return record_passes(
            manager,
            cell.seconds,
            passes=STEADY + 1,
            ensure_cost=ENSURE_SECONDS,
            streams=cell.streams,
            host=cell.host,
        )


def times(cell: Cell, lab: Lab) -> tuple[float, float]:
    """The cold and the steady pass on the simulated GPU, in ms."""
    with run_passes(cell, simulated_card(cell, lab)) as run:
        walls = [run.one().wall for _ in range(STEADY + 1)]
    return walls[0] * 1e3, walls[STEADY] * 1e3


@contextmanager
def run_passes(
    cell: Cell, device: Device, scale: float = 1.0, beside: Callable[[int], None] | None = None
) -> Iterator[Passes]:
    """Pass after pass. `beside` is called before each group, with its number."""
    seconds = [each * scale for each in cell.seconds]
    with (
        _managed(cell, device) as manager,
        Passes(manager, seconds, ENSURE_SECONDS * scale, cell.streams, cell.host, beside) as run,
    ):
        yield run


@contextmanager
def _managed(cell: Cell, device: Device) -> Iterator[WeightManager]:
    groups = cell.groups
    # No weights are looked at: one buffer is the source of all.
    with (
        device.alloc_pinned(max(PARTS.values())) as source,
        WeightManager(
            device,
            groups,
            [source.address] * len(groups),
            budget=cell.ring,
            ring=cell.ring if chosen_policy(cell.policy).depth is None else None,
            policy=cell.policy,
        ) as manager,
    ):
        if manager.layout.resident_bytes:
            raise RuntimeError(f"{cell}: the budget leaves room for residents")
        yield manager


def simulated_card(cell: Cell, lab: Lab) -> Device:
    return fresh_card(lab, PROFILE, link_changes(cell.link))


def link_changes(link: float) -> Changes:
    """Of the profile. Rates from pageable memory are those of its own comment: staging of 10.2 and
    21.2 GB/s in series with the link."""
    if link == PROFILE_RATE:
        return {}
    rates = {
        "host_to_device": link,
        "device_to_host": link,
        "duplex": link * 50.1 / 55.4,
        "pageable_host_to_device": 1 / (1 / 10.2e9 + 1 / link),
        "pageable_device_to_host": 1 / (1 / 21.2e9 + 1 / link),
    }
    return {"link": {f"{name}_bytes_per_s": round(rate, 1) for name, rate in rates.items()}}
