"""Frameworks with their own allocator and with vramkit: are the results equal, what does it cost?

Each row runs in a process of its own. One that fails is a row with its error; the others go on.
"""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import machine
import msgspec
import programs
from frameworks_work import Part, versions

DEFAULT_OUTPUT = programs.RESULTS / "frameworks_h200.json"
MIB = 1 << 20
ERROR_CHARACTERS = 4000


class Case(msgspec.Struct, frozen=True):
    """One framework doing one thing. The first allocator is the one that the others must equal."""

    framework: str
    mode: str
    allocators: tuple[str, ...]
    seconds: float
    """That one process may take."""


# The longest last: where the time runs out, it runs out there.
CASES = [
    Case("torch", "plain", ("native", "vramkit"), 60),
    Case("torch", "graph", ("native", "vramkit"), 60),
    Case("cupy", "pipeline", ("native", "vramkit"), 60),
    Case("rmm", "buffers", ("rmm_pool", "vramkit"), 40),
    Case("torch", "streams", ("native", "vramkit"), 60),
    Case("torch", "mem_pool", ("native", "vramkit"), 60),
    Case("torch", "compile", ("native", "vramkit"), 100),
]


class Row(msgspec.Struct):
    """One allocator under one case: milliseconds of one round, peaks in MiB."""

    framework: str
    mode: str
    allocator: str
    unit: str = "ms"
    median: float | None = None
    p10: float | None = None
    p90: float | None = None
    values: list[float] = []
    peak_mib: float | None = None
    """Held by the allocator at most, by its own count."""
    card_mib: float | None = None
    """Gone from the card at most, beyond what the context and the libraries took at the start."""
    equal: bool | None = None
    """To the first allocator's results, bit by bit; None: nothing to compare."""
    digest: str = ""
    difference: str = ""
    details: dict[str, float] = {}
    seconds: float = 0.0
    """The whole process, import and warming up included."""
    error: str = ""


class Report(msgspec.Struct):
    benchmark: str
    device: str
    machine: machine.Machine
    packages: dict[str, str]
    repetitions: int
    rows: list[Row]


def run_child(case: Case, allocator: str, options: Namespace, folder: Path, left: float) -> Row:
    """The row of one process."""
    row = Row(case.framework, case.mode, allocator)
    most = min(case.seconds, left)
    if most < 5:
        row.error = f"not started: the time limit of {options.time_limit:.0f} s is used up"
        return row
    path = folder / f"{case.framework}_{case.mode}_{allocator}.json"
    command = [sys.executable, __file__, "--json", str(path)]
    command += ["--repetitions", str(options.repetitions)]
    command += ["--child", case.framework, case.mode, allocator]
    start = time.perf_counter()
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=most,
            check=False,
            env=environment(folder),
        )
        status, words = ended.returncode, ended.stderr
    except subprocess.TimeoutExpired as expired:
        status, words = None, _text(expired.stderr)
    row.seconds = round(time.perf_counter() - start, 1)
    if path.is_file():
        fill(row, msgspec.json.decode(path.read_bytes(), type=Part))
    if status != 0:
        row.error = f"{how_it_ended(status, most)}\n{row.error or words}".strip()
        row.error = row.error[-ERROR_CHARACTERS:]
    return row


def environment(folder: Path) -> dict[str, str]:
    """One cache of compiled code for all, so that both allocators run the very same kernels."""
    return {
        **os.environ,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONFAULTHANDLER": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_DETERMINISTIC": "1",
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def _text(written: str | bytes | None) -> str:
    return written.decode(errors="replace") if isinstance(written, bytes) else written or ""


def how_it_ended(status: int | None, most: float) -> str:
    if status is None:
        return f"did not end within {most:.0f} s"
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def fill(row: Row, part: Part) -> None:
    row.error = part.error
    row.values = part.milliseconds
    row.details = part.details
    row.digest = part.digest
    if part.milliseconds:
        row.median = statistics.median(part.milliseconds)
        if len(part.milliseconds) > 1:
            deciles = statistics.quantiles(part.milliseconds, n=10, method="inclusive")
            row.p10, row.p90 = deciles[0], deciles[-1]
    row.peak_mib = None if part.peak_bytes is None else part.peak_bytes / MIB
    row.card_mib = None if part.card_bytes is None else part.card_bytes / MIB


def compare(row: Row, path: Path, first_row: Row, first_path: Path) -> None:
    """Bit by bit by the digest; where that differs, the first figure that does."""
    if not row.digest or not first_row.digest:
        return
    row.equal = row.digest == first_row.digest
    if row.equal:
        return
    ours, theirs = (
        msgspec.json.decode(file.read_bytes(), type=Part).figures for file in (path, first_path)
    )
    for index, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            row.difference = f"figure {index} of {len(theirs)}: {our} instead of {their}"
            return
    row.difference = f"{len(ours)} figures beside {len(theirs)}, or what is not among them"


def run_all(options: Namespace) -> Report:
    report = Report(
        benchmark="frameworks",
        device="",
        machine=machine.collect(),
        packages=versions(),
        repetitions=options.repetitions,
        rows=[],
    )
    report.device = report.machine.gpu
    deadline = time.monotonic() + options.time_limit
    folder = Path(tempfile.mkdtemp(prefix="frameworks_"))
    try:
        for case in CASES:
            if options.only and f"{case.framework}/{case.mode}" not in options.only:
                continue
            first: Row | None = None
            for allocator in case.allocators:
                row = run_child(case, allocator, options, folder, deadline - time.monotonic())
                names = f"{case.framework}_{case.mode}"
                if first is None:
                    first = row
                else:
                    path = folder / f"{names}_{allocator}.json"
                    compare(row, path, first, folder / f"{names}_{first.allocator}.json")
                report.rows.append(row)
                print(line(row), file=sys.stderr, flush=True)
                # After each row: whatever stops us later, what was measured is kept.
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_bytes(msgspec.json.encode(report))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report


def line(row: Row) -> str:
    name = f"{row.framework}/{row.mode} {row.allocator}"
    last = row.error.splitlines()[-1:] if row.error else []
    return (
        f"{name}: {figure(row.median)} ms, equal {said(row.equal)} {row.difference} {''.join(last)}"
    )


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.{1 if abs(value) >= 10 else 3}f}"


def said(equal: bool | None) -> str:
    return "" if equal is None else "yes" if equal else "no"


def markdown(report: Report) -> str:
    named = ", ".join(f"{name} {words}" for name, words in report.packages.items())
    lines = [
        f"{report.device}, {report.machine.cpu}, {report.machine.date[:10]}; {named}. Medians of "
        f"{report.repetitions} rounds with p10 to p90.",
        "",
        "| framework | mode | allocator | ms a round | p10 to p90 | held, MiB | of the card, MiB "
        "| equal | note |",
        "|---|---|---|---:|---|---:|---:|---|---|",
    ]
    for row in report.rows:
        spread = "" if row.p10 is None else f"{figure(row.p10)} to {figure(row.p90)}"
        note = row.difference or (row.error.splitlines() or [""])[-1]
        lines.append(
            f"| {row.framework} | {row.mode} | {row.allocator} | {figure(row.median)} | {spread} "
            f"| {figure(row.peak_mib)} | {figure(row.card_mib)} | {said(row.equal)} "
            f"| {note.replace('|', '/')} |"
        )
    return "\n".join(lines)


def child(options: Namespace) -> None:
    """Does the work of one row here. What went wrong is written too: the parent shows it."""
    framework, mode, allocator = options.child
    try:
        work: Callable[[str, str, int], Part] = import_module(f"frameworks_{framework}").run
        part = work(mode, allocator, options.repetitions)
    except BaseException:
        part = Part(error=traceback.format_exc())
    options.json.write_bytes(msgspec.json.encode(part))
    if part.error:
        sys.exit(1)


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument(
        "--json", type=Path, default=DEFAULT_OUTPUT, help="result file (default: %(default)s)"
    )
    parser.add_argument("--repetitions", type=int, default=5, help="timed rounds of each row")
    parser.add_argument(
        "--time-limit", type=float, default=180, help="seconds of the whole (default: %(default)s)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[f"{case.framework}/{case.mode}" for case in CASES],
        help="these cases alone",
    )
    parser.add_argument(
        "--child",
        nargs=3,
        metavar=("FRAMEWORK", "MODE", "ALLOCATOR"),
        help="one row, in this process; writes its part to --json",
    )
    options = parser.parse_args()
    if options.repetitions < 2:
        parser.error(f"--repetitions is {options.repetitions}; it may be 2 or more")
    return options


def main() -> None:
    options = parse()
    if options.child:
        child(options)
        return
    report = run_all(options)
    programs.publish(report, markdown(report), options.json)
    if any(row.error or row.equal is False for row in report.rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
