"""`vramkit advise FILE`"""

from __future__ import annotations

import sys
from pathlib import Path

from vramkit.cli.errors import UsageError
from vramkit.cli.files import must_be_writable


def advise(
    file: Path,
    /,
    *,
    card: str | None = None,
    profile: str = "h200",
    html: Path | None = None,
    json: bool = False,
) -> int:
    """Say what would help a recorded program.

    Parameters
    ----------
    file
        A trace of vramkit record, a PyTorch memory snapshot, a log of RMM, or a plain trace.
    card
        Memory of the card that it shall run on: 24GiB. Default: that of the profile.
    profile
        The card's link and call costs: a name or a path to a .toml. Default: h200.
    html
        The file for the report as a page.
    json
        The advice as one JSON document.
    """
    from vramkit import driver
    from vramkit.cli.console import output, print_json, progress
    from vramkit.lab.advise.advising import advise_file
    from vramkit.lab.advise.document import counted, document
    from vramkit.report.terminal import print_document
    from vramkit.weights.budget import parse_bytes

    if html is not None:
        must_be_writable("--html", html)
    try:
        nbytes = None if card is None else parse_bytes(card, "--card")
        with progress() as tell:
            advised = advise_file(
                file, driver.open("sim"), profile=profile, card_bytes=nbytes, tell=tell
            )
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not advised:
        raise UsageError(f"{file}: nothing was allocated")
    made = document(file.name, advised, profile)
    if html is not None:
        from vramkit.report.html import page

        html.write_text(page(made), encoding="utf-8")
    if json:
        print_json(advised)
    else:
        print_document(output(), made)
        print(f"vramkit advise: {counted(advised)}", file=sys.stderr)
    return 0
