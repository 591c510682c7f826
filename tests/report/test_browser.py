"""The helper that drives the browser: it ends with its block, and says what went wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from browser import MISSING, Browser, BrowserError, find_browser


def alive(group: int) -> list[int]:
    """Processes of a group, but for dead ones that nobody has waited for."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # After the name in parentheses: state, parent, group.
            state, _, of_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of_group) == group and state not in "ZX":
            found.append(int(folder.name))
    return found


def test_a_program_that_is_no_browser_is_an_error_at_once() -> None:
    with pytest.raises(BrowserError, match="has ended"), Browser("/bin/true"):
        pass


def test_it_ends_with_its_block_also_when_that_fails() -> None:
    executable = find_browser()
    if executable is None:
        pytest.skip(MISSING)
    with pytest.raises(RuntimeError, match="the test failed"), Browser(executable) as browser:
        group, profile = browser.process, browser.folder
        assert alive(group)
        raise RuntimeError("the test failed")
    assert alive(group) == []
    assert not profile.exists()


SILENT = """#!{python}
import os, time
os.read(3, 1 << 16)
os.write(4, b'{{"id":1,"result":{{}}}}\\0')
time.sleep(600)
"""


def test_one_that_hangs_is_an_error_in_time_and_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "hangs"
    program.write_text(SILENT.format(python=sys.executable))
    program.chmod(0o700)
    with Browser(str(program)) as hanging:
        group = hanging.process
        monkeypatch.setattr("browser.SECONDS", 0.05)
        monkeypatch.setattr("browser.SECONDS_TO_END", 0.05)
        with pytest.raises(BrowserError, match=r"no answer to Page\.enable in 0\.05 s"):
            hanging.send("Page.enable")
        assert alive(group)
    assert alive(group) == []


def test_a_script_that_throws_is_an_error(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><title>a page</title>")
    page = browser.open(path, dark=True)
    assert page.evaluate("document.title") == "a page"
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is True
    with pytest.raises(BrowserError, match="no such"):
        page.evaluate("(() => { throw new Error('no such') })()")
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    page.close()


def test_a_page_that_is_not_there_is_an_error(browser: Browser, tmp_path: Path) -> None:
    with pytest.raises(BrowserError, match="ERR_FILE_NOT_FOUND"):
        browser.open(tmp_path / "nothing.html")
