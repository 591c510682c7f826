"""Reports and the outcome of a run in plain words."""

from __future__ import annotations

import re
from pathlib import Path

from vramkit.check.result import CheckResult
from vramkit.driver import LeftOpen, Report, Site, UnsupportedCall
from vramkit.report.blocks import Block, Conflict, Table
from vramkit.report.units import bytes_text, count_text

TITLES = {
    "race": "Race",
    "free_in_use": "Freed while in use",
    "use_after_free": "Used after it was freed",
    "implicit_wait": "Relies on a wait that CUDA does not promise",
    "out_of_bounds": "Out of bounds",
    "overlapping_copy": "Copy onto its own source",
    "deadlock": "Deadlock",
}
SENTENCES = {
    "race": "Two operations touch the same {bytes} at {address}, at least one of them writes, and "
    "nothing says which comes first.",
    "free_in_use": "{bytes} at {address} are freed while work that uses them may still run.",
    "use_after_free": "{bytes} at {address} are used after they were freed.",
    "implicit_wait": "The order of two uses of {bytes} at {address} depends on a call that "
    "happens to wait for the card; CUDA does not document that it does.",
    "out_of_bounds": "{bytes} at {address} are used, outside the block that was allocated.",
    "overlapping_copy": "Source and destination of a copy share {bytes} at {address}.",
    "deadlock": "The work waits for something that nothing in the program will ever do.",
}
VERBS = {
    "read": "reads",
    "write": "writes",
    "atomic": "updates atomically",
    "free": "frees",
    "alloc": "allocates",
}
# What our own libraries tell the checker, by the call that a program makes.
TOLD = {
    "simBlockAlloc": "pool malloc",
    "simBlockFree": "pool free",
    "simBlockHold": "pool free",
    "simHostAccess": "host access",
}
MOST_FRAMES = 6
MOST_MISSING = 8

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
        fix=report.advice,
        tone="bad" if report.severity == "error" else "warning",
    )


def deed(site: Site) -> str:
    """The access in words: "`cuMemcpyHtoDAsync` writes on stream 3, from thread 1 (python)"."""
    where = "on the host" if site.stream is None else f"on stream {site.stream}"
    verb = VERBS.get(site.access, site.access)
    return f"`{call_name(site.call)}` {verb} {where}, called from {site.thread}"


def places(site: Site | UnsupportedCall | LeftOpen, folder: Path) -> list[str]:
    """Innermost first. Our own binding layer is left out: the program begins above it."""
    frames = [frame for frame in site.frames if not frame.startswith(_OWN_FOLDER)]
    shown = frames[:MOST_FRAMES] or [site.location]
    return [place.removeprefix(f"{folder}/") for place in shown]


def blocks(result: CheckResult) -> list[Block]:
    """All that was found, as blocks: reports, then what else the reader should know."""
    found: list[Block] = [conflict(report) for report in result.reports]
    refused = [call for call in result.unsupported if call.reason == "not_supported"]
    if refused:
        found.append(_unsupported(refused))
    if result.left_open:
        found.append(_left_open(result.left_open))
    return found


def _unsupported(calls: list[UnsupportedCall]) -> Table:
    rows = [[f"`{call_name(call.call)}`", f"{call.count:,}", _place(call)] for call in calls]
    title = "Driver calls that the simulated GPU does not support (CUDA_ERROR_NOT_SUPPORTED)"
    return Table(["call", "count", "first from"], rows, title, [1])


def _left_open(entries: list[LeftOpen]) -> Table:
    rows = [
        [bytes_text(entry.nbytes), f"`{call_name(entry.call)}`", f"{entry.count:,}", _place(entry)]
        for entry in sorted(entries, key=lambda entry: -entry.nbytes)
    ]
    title = "Memory not freed when the program ended"
    return Table(["memory", "call", "count", "allocated at"], rows, title, [0, 2])


def _place(located: UnsupportedCall | LeftOpen) -> str:
    return places(located, Path.cwd())[0]


def call_name(symbol: str) -> str:
    """Without the version that the driver's headers add: cuMemAlloc, not cuMemAlloc_v2."""
    return TOLD.get(symbol) or _VERSION.sub("", symbol)


def summary(result: CheckResult, status: int) -> list[str]:
    """The outcome of the run, in a few lines; `status` is the exit status of the check."""
    lines = []
    if result.calls:
        lines.append(_found(result))
    elif result.signal is None:
        lines.append(
            "the program made no driver call: nothing was checked. It must load libcuda.so.1 "
            "by that name, without a path"
        )
    missing = _missing(result)
    if missing and result.program_status:
        lines.append(missing)
    if result.signal is not None or result.program_status or status:
        lines.append(_statuses(result, status))
    return lines


def _missing(result: CheckResult) -> str:
    """Calls that were looked up and not found: harmless, as libraries look up all they know."""
    names = sorted({call.call for call in result.unsupported if call.reason == "missing"})
    if not names:
        return ""
    more = len(names) - MOST_MISSING
    listed = ", ".join(names[:MOST_MISSING]) + (f" and {more:,} more" if more > 0 else "")
    return f"the simulated GPU lacks calls that the program looked up (cuGetProcAddress): {listed}"


def _found(result: CheckResult) -> str:
    count = f"{count_text(result.errors, 'error')}, {count_text(result.warnings, 'warning')}"
    found = count if result.reports else "no report"
    processes = len([process for process in result.processes if process.calls])
    where = f" in {processes} processes" if processes > 1 else ""
    # The call count of a killed process is that of its last report.
    least = "at least " if result.signal is not None else ""
    if result.left_out:
        found += f" and {count_text(result.left_out, 'more report')} left out"
    return (
        f"{found}; {least}{count_text(result.calls, 'driver call')}{where} on a simulated card, "
        f"profile {result.profile}"
    )


def _statuses(result: CheckResult, status: int) -> str:
    """Who the exit status belongs to: the program, or the checker."""
    if result.signal is not None:
        program = f"the program was ended by {result.signal} (status {result.program_status})"
    else:
        program = f"the program ended with status {result.program_status}"
    if status == result.program_status:
        return f"{program}; passed on as the exit status"
    return f"{program}; the exit status of the check is {status}"
