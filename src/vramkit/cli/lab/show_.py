"""`vramkit lab show RESULT`, and how a report is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vramkit.cli.errors import UsageError
from vramkit.cli.files import must_be_writable

if TYPE_CHECKING:
    from vramkit.lab.experiment import Experiment
    from vramkit.lab.result import Report


def show_(result: Path, /, *, html: Path | None = None, json: bool = False) -> int:
    """Draw a saved result again.

    Parameters
    ----------
    result
        The file that --output wrote.
    html
        A file for the report as a page, instead of the terminal.
    json
        The result as one JSON document.
    """
    from vramkit.cli.console import print_json
    from vramkit.lab.catalog import find

    if html is not None:
        must_be_writable("--html", html)
    report = read_result(result)
    try:
        experiment = find(report.experiment)
    except ValueError as error:
        raise UsageError(f"{result}: {error}") from error
    if html is not None:
        write_page(experiment, report, html)
    if json:
        print_json(report)
    elif html is None:
        print_report(experiment, report)
    return 0


def read_result(path: Path) -> Report:
    from vramkit.lab.result import ResultError, load

    try:
        return load(path)
    except ResultError as error:
        raise UsageError(str(error)) from error


def write_page(experiment: Experiment, report: Report, path: Path) -> None:
    from vramkit.lab.document import document
    from vramkit.report.html import page

    path.write_text(page(document(experiment, report)), encoding="utf-8")


def print_report(experiment: Experiment, report: Report) -> None:
    from vramkit.cli.console import output
    from vramkit.lab.document import document
    from vramkit.report.terminal import print_document

    print_document(output(), document(experiment, report))
