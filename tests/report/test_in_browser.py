"""The page of a report in a real browser: wide and narrow, light and dark, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import MISSING, Browser, Page, find_browser

from vramkit.report.html import page

from .every_block import every_block

CHECKS = Path(__file__).with_name("page_checks.js").read_text(encoding="utf-8")
SCREENS = [(1280, False), (1280, True), (375, False), (375, True)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = find_browser()
    if executable is None:
        pytest.skip(MISSING)
    with Browser(executable) as opened:
        yield opened


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


def complaints(page: Page, check: str) -> list[str]:
    found = page.evaluate(f"({CHECKS}).{check}()")
    assert isinstance(found, list)
    return found


def test_it_is_quiet_and_asks_for_nothing_but_itself(opened: Page, document: Path) -> None:
    assert opened.console == []
    assert opened.requests == [document.as_uri()]


@pytest.mark.parametrize(
    "check", ["scrolls", "outside", "overlaps", "undrawn", "astray", "faint", "pale"]
)
def test_nothing_is_wrong_with_its_layout(opened: Page, check: str) -> None:
    found = complaints(opened, check)
    assert not found, "\n".join(found)
