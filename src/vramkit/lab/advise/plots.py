"""Each figure that advice predicts, beside the same figure of today."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from vramkit.lab.advise.advising import Advised
from vramkit.lab.advise.rules import FigureUnit, Prediction
from vramkit.report.blocks import BarChart, ValueBar

TITLES: dict[FigureUnit, str] = {
    "bytes": "Memory, today and as predicted",
    "s": "Time, today and as predicted",
    "share": "Batch, today and as predicted",
}
TODAY, PREDICTED = "today", "predicted"
UNKNOWN = "not in this file"
CAPTION = "What the recording says, and what the advice below predicts."


class Pair(msgspec.Struct, frozen=True):
    what: str
    unit: FigureUnit
    today: float | None
    """None: the recording does not tell."""
    of_today: str
    """What today's figure is."""
    predicted: float
    bound: str


def plots(advised: Advised) -> list[BarChart]:
    """A chart for each unit. What today has no figure for, as the time of a switch, is in none."""
    bars: dict[FigureUnit, list[ValueBar]] = {unit: [] for unit in TITLES}
    for advice in advised.advice:
        for prediction in advice.predicted:
            for pair in _pair(prediction, advised):
                bars[pair.unit] += _bars(pair, advice.title)
    return [
        BarChart(TITLES[unit], found, unit, "advice", caption=CAPTION)
        for unit, found in bars.items()
        if found
    ]


def _pair(prediction: Prediction, advised: Advised) -> Iterator[Pair]:
    """One, or none."""
    seen, value, bound = advised.observed, prediction.value, prediction.bound
    match prediction.key:
        case "held":
            own = "its own allocator"
            yield Pair("memory held", "bytes", seen.held, own, value, bound)
        case "card":
            there = float(advised.card.nbytes)
            yield Pair("memory of the card", "bytes", there, "is there", value, bound)
        case "streamed":
            lasting = float(seen.lasting)
            yield Pair(
                "weights on the card", "bytes", lasting, "what lasts", lasting - value, bound
            )
        case "saved" if seen.timing is not None:
            seconds = seen.timing.seconds
            left = seconds * (1 - value)
            # Savings of at most so much leave at least the rest.
            yield Pair("time of the run", "s", seconds, "as recorded", left, "at least")
        case "batch":
            yield Pair("batch", "share", 1.0, "as recorded", value, bound)


def _bars(pair: Pair, title: str) -> list[ValueBar]:
    why = UNKNOWN if pair.today is None else pair.of_today
    return [
        ValueBar(pair.what, pair.today, series=TODAY, group=title, why=why),
        ValueBar(pair.what, pair.predicted, series=PREDICTED, group=title, why=pair.bound),
    ]
