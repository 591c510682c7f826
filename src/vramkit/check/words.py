"""Reports in plain words: what happened, both sides, and what would order them."""

from __future__ import annotations

import re
from pathlib import Path

from vramkit.driver import Report, Site
from vramkit.report.blocks import Conflict
from vramkit.report.units import bytes_text

TITLES = {
    "race": "Race",
    "free_in_use": "Freed while in use",
    "use_after_free": "Used after it was freed",
    "implicit_wait": "Relies on a wait that CUDA does not promise",
    "deadlock": "Deadlock",
}
SENTENCES = {
    "race": "Two operations touch the same {bytes} at {address}, at least one of them writes, and "
    "nothing says which comes first.",
    "free_in_use": "{bytes} at {address} are given back while work that uses them may still run.",
    "use_after_free": "{bytes} at {address} are used after they were given back.",
    "implicit_wait": "The order of two uses of {bytes} at {address} hangs on a call that happens "
    "to wait for the card; CUDA does not document that it does.",
    "deadlock": "The work waits for something that nothing in the program will ever do.",
}
VERBS = {"read": "reads", "write": "writes", "free": "frees", "alloc": "takes"}
MOST_FRAMES = 6

_OWN_FOLDER = str(Path(__file__).parents[1] / "driver")
_VERSION = re.compile(r"(_v\d+)?(_pt[ds][sz])?$")


def conflict(report: Report, folder: Path | None = None) -> Conflict:
    """The report as a block that the terminal and the HTML page can draw.

    Files under `folder`, the current one where not given, are named without it.
    """
    title = TITLES.get(report.kind, report.kind.replace("_", " "))
    sentence = SENTENCES.get(report.kind, "{bytes} at {address} are used in no defined order.")
    what = sentence.format(bytes=bytes_text(report.nbytes), address=f"{report.address:#x}")
    if report.count > 1:
        what += f" Seen {report.count} times."
    sites = [report.first] if report.kind == "deadlock" else [report.first, report.second]
    return Conflict(
        title=f"{title} ({report.severity})",
        what=what,
        sides=[(deed(site), "\n".join(places(site, folder or Path.cwd()))) for site in sites],
        mend=report.advice,
        tone="bad" if report.severity == "error" else "note",
    )


def deed(site: Site) -> str:
    """Who does what: "`cuMemcpyHtoDAsync` writes on stream 3, from thread 1 (python)"."""
    where = "on the host" if site.stream is None else f"on stream {site.stream}"
    verb = VERBS.get(site.access, site.access)
    call = _VERSION.sub("", site.call)
    return f"`{call}` {verb} {where}, called from {site.thread}"


def places(site: Site, folder: Path) -> list[str]:
    """Innermost first. Our own binding layer is left out: the program begins above it."""
    frames = [frame for frame in site.frames if not frame.startswith(_OWN_FOLDER)]
    shown = frames[:MOST_FRAMES] or [site.location]
    return [place.removeprefix(f"{folder}/") for place in shown]
