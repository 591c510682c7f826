"""Passes beside another program that copies too, on the simulated GPU."""

from __future__ import annotations

import random
import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from vramkit.lab.weights.passes import run_passes, simulated_card
from vramkit.lab.weights.study import MB, Cell

if TYPE_CHECKING:
    from vramkit.driver import Device
    from vramkit.lab.experiment import Lab

PASSES = 20
SEQUENCES = 10
LATE = 1.001
"""A pass that takes so much longer than the quickest one is late."""


class Neighbour(msgspec.Struct, frozen=True):
    """Copies of another program: sizes uniform, the time between them exponential, one at a
    time. While one runs, both programs have half of the link."""

    mean_gap_ms: float = 1000.0
    least_mb: int = 20
    most_mb: int = 400


def measure(
    cell: Cell,
    lab: Lab,
    neighbour: Neighbour = Neighbour(),  # noqa: B008
    passes: int = PASSES,
    sequences: int = SEQUENCES,
) -> dict[str, float]:
    """So many passes behind a cold one, beside each of so many sequences of copies: one sequence
    alone may hide what another shows."""
    by_sequence = [_beside(cell, lab, neighbour, lab.seed + n, passes) for n in range(sequences)]
    walls = [wall for each in by_sequence for wall in each]
    least = min(walls)
    return {
        "steady": statistics.median(walls),
        "over_bound": statistics.median(walls) / (cell.bound * 1e3),
        "slowest": max(walls),
        "quickest": least,
        "late": sum(max(each) > LATE * least for each in by_sequence),
        "bound": cell.bound * 1e3,
        "ring": cell.ring,
    }


def _beside(cell: Cell, lab: Lab, neighbour: Neighbour, seed: int, passes: int) -> list[float]:
    """Milliseconds of each pass."""
    with ExitStack() as stack:
        device = simulated_card(cell, lab)
        copies = _Copies(device, neighbour, seed, cell.link, stack)
        run = stack.enter_context(run_passes(cell, device, beside=copies.issue))
        walls = [run.one().wall * 1e3 for _ in range(1 + passes)][1:]
        device.synchronize()
    return walls


class _Copies:
    """Issues the neighbour's copies some time ahead, at the start of each pass: kernels that spin
    on its stream are the gaps, so that the copies do not depend on how far the host is."""

    AHEAD = 60.0  # seconds: more than a pass takes

    def __init__(
        self, device: Device, neighbour: Neighbour, seed: int, link: float, stack: ExitStack
    ) -> None:
        self._device, self._neighbour, self._link = device, neighbour, link
        self._random = random.Random(seed)
        self._stream = stack.enter_context(device.stream())
        nbytes = neighbour.most_mb * MB
        self._source = stack.enter_context(device.alloc_pinned(nbytes))
        self._target = stack.enter_context(device.alloc(nbytes))
        self._issued = 0.0  # seconds from the start, if nothing else used the link

    def issue(self, group: int) -> None:
        sim = self._device.driver.sim
        assert sim is not None
        if group != 0:
            return
        while self._issued < sim.now() + self.AHEAD:
            gap = self._random.expovariate(1000 / self._neighbour.mean_gap_ms)
            nbytes = self._random.randint(self._neighbour.least_mb, self._neighbour.most_mb) * MB
            self._device.kernels.spin(round(gap * 1e9), stream=self._stream)
            self._device.copy(self._target, self._source, nbytes, stream=self._stream)
            self._issued += gap + nbytes / self._link
