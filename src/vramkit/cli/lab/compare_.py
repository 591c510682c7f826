"""`vramkit lab compare OLD NEW`"""

from __future__ import annotations

from pathlib import Path

from vramkit.cli.errors import UsageError
from vramkit.cli.files import must_be_writable
from vramkit.cli.lab.show_ import read_result

WORSE = 1


def compare_(
    old: Path,
    new: Path,
    /,
    *,
    every: bool = False,
    fail_if_worse: bool = False,
    html: Path | None = None,
    json: bool = False,
) -> int:
    """Compare two results of one experiment.

    Parameters
    ----------
    old
        The result to compare with.
    new
        The result that is better or worse.
    every
        Show also the figures without a difference.
    fail_if_worse
        Exit status 1 where a figure is worse beyond the spread, or a row failed that did not.
    html
        A file for the comparison as a page, instead of the terminal.
    json
        The comparison as one JSON document; a change from zero is null.
    """
    from vramkit.cli.console import output, print_json
    from vramkit.lab.compare import NotComparable, compare_reports
    from vramkit.lab.comparison_document import document
    from vramkit.report.html import page
    from vramkit.report.terminal import print_document

    if html is not None:
        must_be_writable("--html", html)
    try:
        comparison = compare_reports(read_result(old), read_result(new))
    except NotComparable as error:
        raise UsageError(f"{old} and {new}: {error}") from error
    drawn = document(comparison, str(old), str(new), everything=every)
    if html is not None:
        html.write_text(page(drawn), encoding="utf-8")
    if json:
        print_json({**_fields(comparison), "worse": comparison.worse})
    elif html is None:
        print_document(output(), drawn)
    return WORSE if fail_if_worse and comparison.worse else 0


def _fields(comparison: object) -> dict[str, object]:
    import msgspec

    return msgspec.structs.asdict(comparison)  # type: ignore[arg-type]
