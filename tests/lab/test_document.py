"""What a report says besides the figures of its experiment."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from vramkit.lab.document import document
from vramkit.lab.experiment import Experiment
from vramkit.lab.result import Quantity, Report, Row
from vramkit.lab.words import spread_text
from vramkit.report.html import page
from vramkit.report.terminal import print_document

from .programs.fake_lab import FAKE
from .runs import report, row

EXPERIMENT: Experiment = FAKE


def as_text(given: Report) -> str:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    print_document(console, document(EXPERIMENT, given))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def titles(given: Report) -> list[str]:
    return [section.title for section in document(EXPERIMENT, given).sections]


def test_the_terminal_and_the_page_say_the_same() -> None:
    given = report(
        rows=[row("pool", time=[1.0] * 5), row("other", why="no <room>")],
        command="vramkit lab fake --seed 7",
        settings={"rounds": 3},
        seed=7,
    )
    text, html = as_text(given), page(document(EXPERIMENT, given))
    for words in (
        "1 rows have figures.",
        "rows are counted",
        "vramkit lab fake --seed 7 --output again.json",
        "rounds",
        "simulated",
        "12 GiB",
        "a processor, 2 cores",
    ):
        assert words in text and words in html
    assert "no <room>" in text and "no &lt;room&gt;" in html


def test_a_run_that_ended_early_says_so_first() -> None:
    given = report(rows=[row("a", time=[1.0] * 5), row("b", time=[1.0])], stopped="interrupted")
    assert titles(given)[0] == "Stopped early"
    assert "This run ended early: interrupted." in as_text(given)
    assert "1 of 2 rows have all repetitions" in as_text(given)
    assert titles(report())[0] == "What was found"


def test_rows_without_figures_are_told_with_their_reason_once_for_a_subject() -> None:
    rows = [
        Row("a", "absent", outcome="not here", why="no package"),
        Row("b", "absent", outcome="not here", why="no package"),
        Row("a", "away", outcome="not here", why="no package"),
        Row("b", "away", outcome="not here", why="no package"),
        Row("a", "full", outcome="out of memory", why="9 GiB are not free"),
        row("full", "b", time=[1.0]),
        Row("a", "late", "locked", {"time": [1.0, 2.0]}, "timed out", "no result"),
        row("late", "b", time=[1.0]),
    ]
    text = " ".join(as_text(report(rows=rows)).split())
    assert "absent, away all not here no package" in text
    assert text.count("no package") == 1
    assert "full a out of memory 9 GiB are not free" in text
    assert "late a, locked timed out no result (after 2 repetitions)" in text
    assert "What has no figures, or not all" not in titles(report(rows=[row("a", time=[1.0])]))


@pytest.mark.parametrize("before", ["", "VRAMKIT_SIM=devices=2 "])
def test_an_experiment_with_a_command_of_its_own_goes_by_that(before: str) -> None:
    given = report(command=f"{before}vramkit fake file.csv --seed 0")
    assert document(EXPERIMENT, given).title == "vramkit fake: subjects that misbehave"
    given = report(command=f"{before}vramkit lab {given.experiment} --seed 0")
    assert document(EXPERIMENT, given).title.startswith("vramkit lab fake_lab:FAKE: ")


def test_a_real_card_is_not_called_simulated() -> None:
    text = as_text(report(simulated=None))
    assert "simulated" not in text
    assert document(EXPERIMENT, report(simulated=None)).simulated is None


@pytest.mark.parametrize(("repetitions", "few"), [(4, True), (5, False)])
def test_too_few_repetitions_are_said(repetitions: int, few: bool) -> None:
    assert ("fewer than 5 repetitions" in as_text(report(repetitions=repetitions))) is few


def test_spread_stands_beside_a_figure_that_has_one() -> None:
    time = Quantity("it", "ms")
    assert spread_text(time, [2.0] * 5) == "2.00 ms"
    assert spread_text(time, [1.9, 2.0, 2.0, 2.0, 2.1]) == "2.00 ms ± 3.0 %"
    assert spread_text(time, [0.0, 1.0, 9.0]) == "1.00 ms ± 360 %"
