"""The plots of advice: what is predicted, beside the same figure of today."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from vramkit.lab.advise.advising import Advised
from vramkit.lab.advise.document import document
from vramkit.lab.advise.observed import Level, Observed, Timing
from vramkit.lab.advise.plots import UNKNOWN, plots
from vramkit.lab.advise.rules import CONTEXT_BYTES, Card, Pooled, advise
from vramkit.report.blocks import BarChart
from vramkit.report.html import page
from vramkit.report.terminal import print_document

GIB = 1 << 30
CARD = Card("a card of 24 GiB", 24 * GIB, 25e9, 100e-6, 50e-6)


def advised(
    peak: int,
    lasting: int,
    pooled: int | None,
    *,
    held: int | None = None,
    timing: Timing | None = None,
    level: Level = "tensors",
) -> Advised:
    seen = Observed("a program", level, 1000, peak * GIB, lasting * GIB, held, timing)
    on_pool = None if pooled is None else Pooled(pooled * GIB)
    return Advised(seen, on_pool, CARD, advise(seen, CARD, on_pool))


Drawn = dict[tuple[str, str], tuple[float | None, float | None, str]]


def drawn(given: Advised) -> Drawn:
    """Of each piece of advice and figure: today's, the predicted one, and how that is bound."""
    found: Drawn = {}
    for chart in plots(given):
        assert isinstance(chart, BarChart)
        for today, predicted in zip(chart.bars[::2], chart.bars[1::2], strict=True):
            assert (today.series, predicted.series) == ("today", "predicted")
            assert (today.group, today.label) == (predicted.group, predicted.label)
            assert (today.value is None) == (today.why == UNKNOWN)
            key = today.group, today.label
            assert key not in found
            found[key] = today.value, predicted.value, predicted.why
    return found


def test_each_predicted_figure_stands_beside_todays() -> None:
    """30 GiB in use, 20 of which last, on a card of 24; 10,100 calls of 100 us in 100 s."""
    timing = Timing(100, 50, 10_100, 0, 0, 1_000)
    given = advised(30, 20, 30, held=33 * GIB, timing=timing)
    weights = CARD.room - 10 * GIB
    batch = (CARD.room - 20 * GIB) / (10 * GIB)
    assert drawn(given) == {
        ("allocator: do", "memory held"): (33 * GIB, 30 * GIB, "about"),
        ("card: do", "memory of the card"): (24 * GIB, 30 * GIB + CONTEXT_BYTES, "at least"),
        ("offload: consider", "weights on the card"): (20 * GIB, weights, "about"),
        ("allocator: consider", "time of the run"): (100, pytest.approx(98.99), "at least"),
        ("batch: consider", "batch"): (1, pytest.approx(batch), "at most"),
    }
    assert [chart.unit for chart in plots(given)] == ["bytes", "s", "share"]


def test_a_figure_that_the_file_does_not_have_is_said_to_be_missing() -> None:
    assert drawn(advised(10, 4, 11)) == {
        ("card: no need", "memory of the card"): (24 * GIB, 11 * GIB + CONTEXT_BYTES, "about"),
        ("allocator: cannot say", "memory held"): (None, 11 * GIB, "about"),
    }


@pytest.mark.parametrize("level", ["tensors", "driver"])
def test_all_advice_has_a_plot_of_the_card_on_the_page_and_in_the_terminal(level: Level) -> None:
    given = advised(10, 4, None, level=level)
    assert [label for _, label in drawn(given)] == ["memory of the card"]
    made = document("a file", [given], "h200")
    console = Console(file=io.StringIO(), width=100, highlight=False)
    print_document(console, made)
    assert isinstance(console.file, io.StringIO)
    for text in (console.file.getvalue(), page(made)):
        assert "Memory, today and as predicted" in text and "is there" in text
    assert 'class="barchart' in page(made)
