"""The pages of real runs in a browser: every plot drawn, nothing fetched, nothing said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from browser import Browser

from tests.report.test_in_browser import CHECKS, SCREENS

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
        "layers=6",
        "--cases",
        "5 GB/s,1.5 GB/s",
        "--subjects",
        "auto,history1",
    ),
    "sharing": ("lab", "sharing", *SMALL, "--cases", "*switch*", "--subjects", "paged,swap"),
    "replay": ("replay", str(DATA / "lstm_text.csv.gz"), *SMALL, "--quick", *FEW),
}
PLOTS = "document.querySelectorAll('.barchart, .linechart, .timeline, .memory').length"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_run_is_drawn_and_works_offline(
    name: str, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The page tells the command, with what stood before it.
    monkeypatch.setenv("VRAMKIT_SIM", "profile=h200,clock=virtual,checker=on,data=on,stacks=off")
    path = tmp_path / f"{name}.html"
    command = [sys.executable, "-m", "vramkit.cli", *COMMANDS[name], "--html", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for width, dark in SCREENS:
        opened = browser.open(path, width, dark=dark)
        assert opened.console == []
        assert opened.requests == [path.as_uri()]
        assert opened.evaluate(PLOTS) > 0
        for check in ("scrolls", "outside", "overlaps", "undrawn", "astray", "faint", "pale"):
            found = opened.evaluate(f"({CHECKS}).{check}()")
            assert not found, f"{check}, {width} wide, dark {dark}: {found}"
        opened.close()
