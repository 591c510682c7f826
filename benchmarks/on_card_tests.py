"""Runs tests for on_card.py, which stops and goes on: those that passed before are left out.

    python benchmarks/on_card_tests.py RESULT --driver=cuda PYTEST_ARGUMENTS...

RESULT is written after each test: by its id "passed", "failed" or "skipped: why". Status 0: all
have passed, in this run or before. A test that was skipped for something that this machine lacks is
none of them; one that is meant for the other kind of driver does not count.
"""

import json
import os
import sys
from pathlib import Path

import pytest

MEANT_FOR_THE_OTHER = {
    "cuda": ("needs the simulated GPU",),
    "sim": ("needs a card", "no card has been asked yet"),
}

PASSED = "VK_PASSED_BEFORE"
"""Names the file with the tests to leave out, for the processes of pytest-xdist too."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """By their whole names: --deselect takes those that begin alike, too."""
    passed = set(json.loads(Path(os.environ[PASSED]).read_text("utf-8")))
    left_out = [item for item in items if item.nodeid in passed]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.nodeid not in passed]


class Results:
    """A plugin of pytest; with pytest-xdist, of the process that hears of all tests."""

    def __init__(self, path: Path, driver: str) -> None:
        self._path, self._other = path, MEANT_FOR_THE_OTHER[driver]
        self.found: dict[str, str] = read(path)

    def passed(self) -> list[str]:
        return [name for name, outcome in self.found.items() if outcome == "passed"]

    def lacking(self) -> dict[str, str]:
        return {name: why for name, why in self.found.items() if why.startswith("skipped")}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that needs what is not there is skipped as a whole."""
        self.found.pop(report.nodeid, None)
        if report.skipped:
            self._skipped(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._skipped(report)
        elif report.failed:
            self.found[report.nodeid] = "failed"
        elif report.when == "call":
            self.found[report.nodeid] = "passed"
        if report.when == "teardown":
            self._path.write_text(json.dumps(self.found, indent=2) + "\n", "utf-8")

    def _skipped(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        why = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else "unknown"
        why = why.removeprefix("Skipped: ")
        if not why.startswith(self._other):
            self.found[report.nodeid] = f"skipped: {why}"


def read(path: Path) -> dict[str, str]:
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def main() -> int:
    path, *arguments = sys.argv[1:]
    driver = next(word for word in arguments if word.startswith("--driver=")).partition("=")[2]
    results = Results(Path(path), driver)
    before = results.passed()
    leave_out = Path(path).with_suffix(".before")
    leave_out.write_text(json.dumps(before), "utf-8")
    os.environ[PASSED] = str(leave_out)
    status = int(pytest.main(["-p", Path(__file__).stem, *arguments], plugins=[results]))
    if status == pytest.ExitCode.NO_TESTS_COLLECTED and before:
        status = 0  # all of them have passed before
    if before:
        print(f"{len(before)} tests passed before")
    for name, why in results.lacking().items():
        print(f"{why}: {name}")
    return status or int(bool(results.lacking()))


if __name__ == "__main__":
    sys.exit(main())
