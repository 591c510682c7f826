"""From a file to advice, for each process and card in it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from vramkit.lab.advise.card import card_of, pooled
from vramkit.lab.advise.observed import Observed, observe
from vramkit.lab.advise.rules import Advice, Card, Pooled, advise
from vramkit.lab.traces import read_traces

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.lab.traces import Trace


class Advised(msgspec.Struct, frozen=True):
    """What was seen of one process on one card, and what follows from it."""

    observed: Observed
    pooled: Pooled | None
    """None: not even the largest card holds it."""
    card: Card
    advice: list[Advice]


def advise_file(
    path: Path,
    driver: Driver,
    *,
    profile: str = "h200",
    card_bytes: int | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> list[Advised]:
    """`driver` is a simulated GPU, on which the allocations are replayed. Raises TraceError, and
    ValueError for a profile or a card."""
    tell(f"reading {path.name}")
    return [
        _advised(trace, driver, profile, card_bytes, tell)
        for trace in read_traces(path)
        if trace.allocations
    ]


def _advised(
    trace: Trace,
    driver: Driver,
    profile: str,
    card_bytes: int | None,
    tell: Callable[[str], None],
) -> Advised:
    from vramkit.driver import OutOfMemoryError

    seen = observe(trace)
    card = card_of(driver, profile, card_bytes, round(statistics.median(trace.sizes)))
    held: Pooled | None = None
    if seen.level == "tensors":
        tell(f"replaying {trace.name}: {trace.allocations:,} allocations")
        try:
            held = pooled(driver, profile, trace, card.room)
        except OutOfMemoryError:
            held = None
    return Advised(seen, held, card, advise(seen, card, held))
