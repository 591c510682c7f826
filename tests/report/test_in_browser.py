"""The page of a report in a real browser: wide and narrow, light and dark, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page

from vramkit.report.html import page

from .every_block import every_block

CHECKS = Path(__file__).with_name("page_checks.js").read_text(encoding="utf-8")
SCREENS = [(1280, False), (1280, True), (375, False), (375, True)]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "every block.html"
    path.write_text(page(every_block()), encoding="utf-8")
    return path


@pytest.fixture(
    scope="module",
    params=SCREENS,
    ids=[f"{width}-{'dark' if dark else 'light'}" for width, dark in SCREENS],
)
def opened(request: pytest.FixtureRequest, browser: Browser, document: Path) -> Iterator[Page]:
    width, dark = request.param
    result = browser.open(document, width, dark=dark)
    yield result
    result.close()


def test_it_is_quiet_and_asks_for_nothing_but_itself(opened: Page, document: Path) -> None:
    assert opened.console == []
    assert opened.requests == [document.as_uri()]


@pytest.mark.parametrize(
    "check", ["scrolls", "outside", "overlaps", "undrawn", "astray", "faint", "pale"]
)
def test_nothing_is_wrong_with_its_layout(opened: Page, check: str) -> None:
    found = opened.evaluate(f"({CHECKS}).{check}()")
    assert not found, "\n".join(found)


FAULTY = """<!doctype html><meta name="viewport" content="width=device-width">
<body style="background: white; color: #ccc">
<p style="width: 3000px; text-align: right">far away</p>
<figure><figcaption>Chart</figcaption><div class="barchart" style="width: 50px"><div class="rules">
<i style="position: absolute; left: 10px; top: 90px">one</i>
<i style="position: absolute; left: 15px; top: 90px">two</i></div>
<span class="plot" style="position: relative; display: block; width: 40px; height: 9px">
<i class="fill" style="--c: #eee; position: absolute; left: 30px; width: 30px; height: 9px"></i>
</span></div></figure>
<script>console.warn("look"); setTimeout(() => { throw new Error("oops") }, 0)</script>
<img src="missing.png"></body>"""
COMPLAINTS = {
    "scrolls": "wide on 375",
    "outside": "far away",
    "overlaps": "one and two",
    "undrawn": "50 x",
    "astray": "leaves its plot",
    "faint": "far away",
    "pale": 'class="fill"',
}


def test_the_checks_find_what_is_wrong_with_another_page(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "faulty.html"
    path.write_text(FAULTY)
    faulty = browser.open(path, 375)
    for check, words in COMPLAINTS.items():
        found = faulty.evaluate(f"({CHECKS}).{check}()")
        assert any(words in each for each in found), f"{check}: {found}"
    missing = path.with_name("missing.png").as_uri()
    assert faulty.requests == [path.as_uri(), missing]
    said = "\n".join(faulty.console)
    assert "warning: look" in said and "Error: oops" in said and "ERR_FILE_NOT_FOUND" in said
    faulty.close()
