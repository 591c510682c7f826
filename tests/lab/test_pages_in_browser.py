"""The pages of real runs in a browser: every plot drawn, nothing fetched, nothing said.

And those of runs that no test can make: on a card, with all the allocators that there are.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from browser import Browser

from tests.lab.allocator_reports import around, made
from tests.report.test_in_browser import CHECKS, SCREENS
from vramkit.lab.catalog import EXPERIMENTS
from vramkit.lab.document import document
from vramkit.lab.experiment import Case
from vramkit.lab.result import Report
from vramkit.lab.settings import resolve
from vramkit.lab.subjects import SUBJECTS
from vramkit.report.html import page

DATA = Path(__file__).resolve().parents[1] / "data"
SMALL = ("--driver", "sim", "--repetitions", "1")
FEW = ("--subjects", "pool,async")
COMMANDS = {
    "allocators": ("lab", "allocators", *SMALL, "--cases", "simple,memory_limited", *FEW),
    "fragmentation": (
        *("lab", "fragmentation", *SMALL, "--set", "scale=0.02", "--set", "rounds=10"),
        *("--set", "blocks=500", *FEW),
    ),
    "weights": (
        "lab",
        "weights",
        *SMALL,
        "--set",
        "layers=10",
        "--cases",
        "5 GB/s,1.5 GB/s",
        "--subjects",
        "auto,history1",
    ),
    "sharing": ("lab", "sharing", *SMALL, "--cases", "*switch*", "--subjects", "paged,swap"),
    "weights-sweep": ("lab", "weights-sweep", *SMALL, "--set", "layers=10", "--cases", "5 GB/s"),
    "replay": ("replay", str(DATA / "lstm_text.csv.gz"), *SMALL, "--quick", *FEW),
    "advise": ("advise", str(DATA / "lstm_text.csv.gz"), "--card", "8GiB"),
    "demo": ("demo", "--driver", "sim"),
}
FILE_OPTION = {"demo": "--report"}
BARS, LINES, MAP = 'class="barchart', 'class="linechart"', 'class="chart memory"'
KINDS = {
    **dict.fromkeys(("allocators", "fragmentation"), (BARS, LINES, MAP)),
    **dict.fromkeys(("weights-sweep", "advise"), (BARS,)),
    "replay": (LINES, MAP),
}
"""Plots that a page must have, as they are written."""
PLOTS = "document.querySelectorAll('.barchart, .linechart, .timeline, .memory').length"

SCROLLED = """(() => {
  const wide = [...document.querySelectorAll("main > section > .wide")]
    .filter(box => box.scrollWidth > box.clientWidth);
  wide.forEach(box => { box.scrollLeft = box.scrollWidth; });
  const lefts = selector => wide.flatMap(box => [...box.querySelectorAll(selector)])
    .map(each => each.getBoundingClientRect().left);
  return [lefts("caption span"), lefts("tbody td:first-child")];
})()"""
"""Where titles and names of rows are when all tables are scrolled to their ends."""


def look_at(path: Path, browser: Browser) -> None:
    for width, dark in SCREENS:
        opened = browser.open(path, width, dark=dark)
        assert opened.console == []
        assert opened.requests == [path.as_uri()]
        assert opened.evaluate(PLOTS) > 0
        for check in ("scrolls", "outside", "overlaps", "undrawn", "astray", "faint", "pale"):
            found = opened.evaluate(f"({CHECKS}).{check}()")
            assert not found, f"{check}, {width} wide, dark {dark}: {found}"
        opened.close()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_run_is_drawn_and_works_offline(
    name: str, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The page tells the command, with what stood before it.
    monkeypatch.setenv("VRAMKIT_SIM", "profile=h200,clock=virtual,checker=on,data=on,stacks=off")
    path = tmp_path / f"{name}.html"
    option = FILE_OPTION.get(name, "--html")
    command = [sys.executable, "-m", "vramkit.cli", *COMMANDS[name], option, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    look_at(path, browser)
    for kind in KINDS.get(name, ()):
        assert kind in path.read_text(encoding="utf-8"), kind


PARTS = {"allocation": 0.02, "launch": 0.01, "wait": 0.9, "kernels": 0.95}
"""Of the time."""


WITH_SERIES = {("memory_limited", "default"), ("alone", "cold")}


def every_subject(name: str) -> Report:
    """A report as of a card on which all libraries are installed: all cases, all subjects, and
    figures of all lengths. In one case somebody has none."""
    experiment = EXPERIMENTS[name]
    rows = {}
    for number, case in enumerate(cases_on_a_card(name)):
        for place, subject in enumerate(SUBJECTS):
            value = 10.0 ** (place % 6) * (1 + number % 9) * 1.2345
            of_value = {"bytes": 1e9, **PARTS}
            rows[case.workload, case.arm, subject] = {
                name: around(value * of_value.get(name, of_value.get(quantity.unit, 1.0)), 0.02)
                for name, quantity in experiment.quantities.items()
                if name != "checksum"
            }
    report = made(experiment, rows)
    for row in report.rows:
        if (row.workload, row.arm) in WITH_SERIES:
            top = 1e9 * (1 + list(SUBJECTS).index(row.subject) % 4)
            row.series = {"event": [0, 1000], "in_use": [1e9, 1e8], "held": [1e9, top]}
    lost = next(row for row in report.rows if row.subject == "torch_expandable")
    lost.values, lost.outcome, lost.why = {}, "out of memory", "CUDA_ERROR_OUT_OF_MEMORY"
    return report


def cases_on_a_card(name: str) -> list[Case]:
    experiment = EXPERIMENTS[name]
    if name != "allocators":
        return experiment.cases(resolve(experiment.settings, []))
    engines = ("native", "python", "cupy", "cudf")
    each = [experiment.cases(resolve(experiment.settings, [f"engine={one}"])) for one in engines]
    return [case for cases in each for case in cases]


@pytest.mark.parametrize("name", ["allocators", "fragmentation"])
def test_the_page_of_a_run_with_every_subject_is_drawn_on_a_phone(
    name: str, browser: Browser, tmp_path: Path
) -> None:
    assert len(SUBJECTS) == 13
    path = tmp_path / f"{name}.html"
    drawn = page(document(EXPERIMENTS[name], every_subject(name)))
    path.write_text(drawn, encoding="utf-8")
    assert all(subject in drawn for subject in SUBJECTS)
    look_at(path, browser)
    assert drawn.count(LINES) == 1
    opened = browser.open(path, 375)
    titles, names = opened.evaluate(SCROLLED)
    assert titles and names and all(-1 <= left < 375 for left in (*titles, *names))
    opened.close()
