"""Runs a program on the simulated GPU with the checker on, and collects what was reported."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vramkit.check.collect import collect
from vramkit.check.result import CheckResult
from vramkit.check.settings import Stacks, must_be_usable, run_settings, settings_text
from vramkit.driver.opening import sim_folder
from vramkit.launch import Launch, run_program


def check_program(
    program: Sequence[str],
    *,
    stacks: Stacks = "python",
    profile: str | None = None,
    capture: bool = False,
) -> CheckResult:
    """Runs the program to its end with the checker on.

    Its standard streams are the caller's, or are captured. Settings in VRAMKIT_SIM stay in force
    (capacity, clock, data, ...) except those that the check itself sets. Drivers that the caller
    has open, also a simulated one, are not touched. Raises CheckError for a bad setting and
    vramkit.launch.LaunchError for a program that cannot be started.
    """
    settings = run_settings(os.environ.get("VRAMKIT_SIM", ""), stacks=stacks, profile=profile)
    must_be_usable(settings)
    with tempfile.TemporaryDirectory(prefix="vramkit-check-") as folder:
        reports = Path(folder) / "reports"
        launch = Launch(
            program,
            {
                "VRAMKIT_DRIVER": "sim",
                "VRAMKIT_SIM": settings_text(settings | {"reports": str(reports)}),
            },
            search_first=sim_folder(),
        )
        ended = run_program(launch, capture=capture)
        processes = collect(reports)
    return CheckResult(
        program=list(program),
        program_status=ended.status,
        signal=ended.signal,
        profile=settings["profile"],
        processes=processes,
        stdout=ended.stdout,
        stderr=ended.stderr,
    )
