"""Starts a program whose libcuda.so.1 is the simulated GPU, and collects what was reported."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Literal

import msgspec

from vramkit import driver
from vramkit.check.addresses import Resolver
from vramkit.check.result import CheckedProcess, CheckResult
from vramkit.driver import Report, Site
from vramkit.driver.opening import sim_folder

Stacks = Literal["python", "native", "off"]
FORWARDED = (signal.SIGTERM, signal.SIGHUP)


class CheckError(ValueError):
    """The run cannot begin: a setting is wrong or the program is not there."""


class ProgramNotFoundError(CheckError):
    """There is no such program, or it may not be executed."""


def check_program(
    program: Sequence[str],
    *,
    stacks: Stacks = "python",
    profile: str | None = None,
    capture: bool = False,
) -> CheckResult:
    """Runs the program to its end with the checker on.

    Its standard streams pass through untouched, or are captured. Settings in VRAMKIT_SIM stay in
    force (capacity, clock, data, ...) except those that this run is about.
    """
    settings = _settings(os.environ.get("VRAMKIT_SIM", ""))
    folder = sim_folder()
    settings["profile"] = _known_profile(profile or settings.get("profile", "h200"), folder)
    settings |= {"checker": "on", "stacks": stacks}
    _executable(program[0])
    with tempfile.TemporaryDirectory(prefix="vramkit-check-") as place:
        reports = Path(place) / "reports"
        settings["reports"] = str(reports)
        _must_be_usable(settings)
        environment = _environment(os.environ, folder, settings)
        status, stdout, stderr = _run(program, environment, capture)
        processes = _collect(reports)
    return CheckResult(
        program=list(program),
        program_status=128 - status if status < 0 else status,
        signal=_signal_name(-status) if status < 0 else None,
        profile=settings["profile"],
        processes=processes,
        stdout=stdout,
        stderr=stderr,
    )


def _settings(text: str) -> dict[str, str]:
    """ "key=value,key=value" as the simulated GPU reads it."""
    settings = {"clock": "virtual"}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise CheckError(f"VRAMKIT_SIM has {part!r}; it is a list of key=value, with commas")
        settings[key.strip()] = value.strip()
    return settings


def _must_be_usable(settings: Mapping[str, str]) -> None:
    """Tried on a simulated GPU of our own: the program could only say that cuInit failed."""
    if "," in settings["reports"]:
        raise CheckError(f"the folder for temporary files has a comma: {settings['reports']}")
    try:
        sim = driver.open("sim").sim
        assert sim is not None
        sim.apply({key: value for key, value in settings.items() if key != "reports"})
    except ValueError as error:
        raise CheckError(str(error)) from None


def _known_profile(profile: str, folder: Path) -> str:
    """A name stays a name; a path becomes absolute, since the program may change its folder."""
    if "/" in profile or profile.endswith(".toml"):
        path = Path(profile)
        if not path.is_file():
            raise CheckError(f"there is no profile {profile}")
        return str(path.resolve())
    names = sorted(path.stem for path in (folder / "profiles").glob("*.toml"))
    if profile not in names:
        raise CheckError(
            f"there is no profile {profile!r}; there are {', '.join(names)}, or a path to a .toml"
        )
    return profile


def _environment(
    base: Mapping[str, str], folder: Path, settings: Mapping[str, str]
) -> dict[str, str]:
    paths = [str(folder), *filter(None, [base.get("LD_LIBRARY_PATH")])]
    return {
        **base,
        "LD_LIBRARY_PATH": os.pathsep.join(paths),
        "VRAMKIT_DRIVER": "sim",
        "VRAMKIT_SIM": ",".join(f"{key}={value}" for key, value in settings.items()),
    }


def _executable(name: str) -> None:
    if shutil.which(name) is None:
        there = Path(name).exists() and "/" in name
        reason = "may not be executed" if there else "not found"
        raise ProgramNotFoundError(f"{name}: {reason}")


def _run(
    program: Sequence[str], environment: Mapping[str, str], capture: bool
) -> tuple[int, str | None, str | None]:
    pipe = subprocess.PIPE if capture else None
    try:
        child = subprocess.Popen(
            program, env=environment, stdout=pipe, stderr=pipe, text=True, errors="replace"
        )
    except OSError as error:
        raise ProgramNotFoundError(f"{program[0]}: {error.strerror}") from error
    with _forwarded_signals(child):
        stdout, stderr = child.communicate()
    return child.returncode, stdout, stderr


@contextmanager
def _forwarded_signals(child: subprocess.Popen[str]) -> Iterator[None]:
    """Signals meant for us reach the program. Ctrl-C reaches it by itself; we only outlive it."""

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _collect(reports: Path) -> list[CheckedProcess]:
    """Each process wrote a file of its own beside the path; those without a call say nothing."""
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

    def resolved_site(site: Site) -> Site:
        return msgspec.structs.replace(
            site,
            location=resolver.resolve(site.location),
            frames=[resolver.resolve(frame) for frame in site.frames],
        )

    def resolved(report: Report) -> Report:
        return msgspec.structs.replace(
            report, first=resolved_site(report.first), second=resolved_site(report.second)
        )

    return [
        msgspec.structs.replace(process, reports=[resolved(report) for report in process.reports])
        for process in processes
    ]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
