"""Reads what the processes of a checked run have written, native places as source lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from vramkit.check.addresses import Resolver
from vramkit.check.result import CheckedProcess
from vramkit.driver import LeftOpen, Site, UnsupportedCall

Located = TypeVar("Located", Site, UnsupportedCall, LeftOpen)


def collect(reports: Path) -> list[CheckedProcess]:
    """Each process wrote a file of its own beside the path; those without a call wrote none."""
    processes = [
        msgspec.json.decode(path.read_bytes(), type=CheckedProcess)
        for path in sorted(reports.parent.glob(reports.name + ".*"))
    ]
    resolver = Resolver(
        place
        for process in processes
        for located in _located(process)
        for place in (located.location, *located.frames)
    )
    return [_resolved(process, resolver) for process in processes]


def _located(process: CheckedProcess) -> Iterator[Site | UnsupportedCall | LeftOpen]:
    for report in process.reports:
        yield from (report.first, report.second)
    yield from process.unsupported
    yield from process.left_open or ()


def _resolved(process: CheckedProcess, resolver: Resolver) -> CheckedProcess:
    def one(located: Located) -> Located:
        return msgspec.structs.replace(
            located,
            location=resolver.resolve(located.location),
            frames=[resolver.resolve(frame) for frame in located.frames],
        )

    def each(entries: Sequence[Located]) -> list[Located]:
        return [one(entry) for entry in entries]

    return msgspec.structs.replace(
        process,
        reports=[
            msgspec.structs.replace(report, first=one(report.first), second=one(report.second))
            for report in process.reports
        ],
        unsupported=each(process.unsupported),
        left_open=None if process.left_open is None else each(process.left_open),
    )
