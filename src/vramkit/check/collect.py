"""Reads what the processes of a checked run have written, native places as source lines."""

from __future__ import annotations

from pathlib import Path

import msgspec

from vramkit.check.addresses import Resolver
from vramkit.check.result import CheckedProcess
from vramkit.driver import Report, Site


def collect(reports: Path) -> list[CheckedProcess]:
    """Each process wrote a file of its own beside the path; those without a call wrote none."""
    processes = [
        msgspec.json.decode(path.read_bytes(), type=CheckedProcess)
        for path in sorted(reports.parent.glob(reports.name + ".*"))
    ]
    resolver = Resolver(
        place
        for process in processes
        for report in process.reports
        for site in (report.first, report.second)
        for place in (site.location, *site.frames)
    )
    return [
        msgspec.structs.replace(
            process, reports=[_resolved(report, resolver) for report in process.reports]
        )
        for process in processes
    ]


def _resolved(report: Report, resolver: Resolver) -> Report:
    return msgspec.structs.replace(
        report,
        first=_resolved_site(report.first, resolver),
        second=_resolved_site(report.second, resolver),
    )


def _resolved_site(site: Site, resolver: Resolver) -> Site:
    return msgspec.structs.replace(
        site,
        location=resolver.resolve(site.location),
        frames=[resolver.resolve(frame) for frame in site.frames],
    )
