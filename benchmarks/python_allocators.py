"""Measures allocators from Python: vramkit, RMM, CuPy, PyTorch.

Each part runs in a process of its own: none finds the card taken by another, and one that is
missing, fails or takes too long leaves the others their figures.
"""

import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import machine
import msgspec
import python_fragmentation as fragmentation
import python_pairs as pairs
from rows import Row, timed_out

from vramkit import driver
from vramkit.lab.subjects import SUBJECTS

GIB = 1 << 30
Measurements = Iterator[tuple[Row, Callable[[Row], None]]]
"""Rows with names and unit, each with what fills it in."""


class Part(msgspec.Struct, frozen=True):
    """What one process measures."""

    package: tuple[str, ...]
    """The names that its distribution may have; none: Python itself."""
    limit_s: int
    """Three times what it is expected to take, most of that for the import."""
    measurements: Callable[[Namespace], Measurements]


class Found(msgspec.Struct):
    """What a process found so far; renewed with every row."""

    version: str
    rows: list[Row]
    running: Row | None = None


class Report(msgspec.Struct):
    benchmark: str
    machine: machine.Machine
    packages: dict[str, str]
    """Versions."""
    missing: list[str]
    """Parts that did not end well, and why."""
    rows: list[Row]


def of_pairs(loops: Callable[[], pairs.Loops]) -> Callable[[Namespace], Measurements]:
    def measurements(options: Namespace) -> Measurements:
        for workload, allocator, loop in loops():
            yield Row(workload, allocator, "ns"), partial(pairs.measure, loop=loop)

    return measurements


def of_fragmentation(subject: str) -> Callable[[Namespace], Measurements]:
    def measurements(options: Namespace) -> Measurements:
        measure = partial(
            fragmentation.measure,
            subject=SUBJECTS[subject],
            device=driver.open("cuda").device(),
            cap=options.cap_gib * GIB,
            fill=options.fill_gib * GIB,
        )
        yield Row("fragmentation", subject, "ms"), measure

    return measurements


RMM = ("rmm-cu13", "rmm-cu12", "rmm")
CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
TORCH = ("torch",)
# In the order in which they run: ours first, the slow ones last.
PARTS = {
    "python": Part((), 10, of_pairs(pairs.empty_loops)),
    "vramkit": Part(("vramkit",), 15, of_pairs(pairs.vramkit_loops)),
    "cupy": Part(CUPY, 20, of_pairs(pairs.cupy_loops)),
    "torch": Part(TORCH, 30, of_pairs(pairs.torch_loops)),
    "rmm": Part(RMM, 25, of_pairs(pairs.rmm_loops)),
    "cupy_fragmentation": Part(CUPY, 25, of_fragmentation("cupy_pool")),
    "torch_fragmentation": Part(TORCH, 35, of_fragmentation("torch")),
    "torch_expandable_fragmentation": Part(TORCH, 35, of_fragmentation("torch_expandable")),
}


def installed_version(distributions: tuple[str, ...]) -> str:
    if not distributions:
        return sys.version.split()[0]
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def write(path: Path, found: Found) -> None:
    """All or nothing: the process may be ended while it writes."""
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.encode(found))
    beside.replace(path)


def measure_part(name: str, options: Namespace) -> None:
    """The work of one process."""
    part = PARTS[name]
    found = Found(installed_version(part.package), [])
    for row, measure in part.measurements(options):
        found.running = row
        write(options.output, found)
        measure(row)
        found.rows.append(row)
        found.running = None
        write(options.output, found)


def run_part(name: str, options: Namespace, left_s: float) -> tuple[Found, str]:
    """What the process of the part found, and what went wrong, if anything did."""
    part = PARTS[name]
    limit = min(part.limit_s, left_s)
    if limit < 1:
        return Found(installed_version(part.package), []), "not run: no time was left"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, __file__, "--part", name, "--output", str(path)]
        command += ["--cap-gib", str(options.cap_gib), "--fill-gib", str(options.fill_gib)]
        wrong = ""
        try:
            ended = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
            if ended.returncode != 0:
                wrong = (ended.stderr.strip().splitlines() or [f"status {ended.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            wrong = timed_out(limit)
        found = (
            msgspec.json.decode(path.read_bytes(), type=Found)
            if path.is_file()
            else Found(installed_version(part.package), [])
        )
    if found.running is not None:
        found.running.outcome = wrong
        found.rows.append(found.running)
    return found, wrong


def run_all(options: Namespace) -> None:
    end = time.monotonic() + options.time_limit
    report = Report("python_allocators", machine.collect(), {}, [], [])
    for name, part in PARTS.items():
        found, wrong = run_part(name, options, end - time.monotonic())
        report.packages.setdefault((part.package or ("python",))[-1], found.version)
        report.rows += found.rows
        if wrong:
            report.missing.append(f"{name}: {wrong}")
            print(report.missing[-1], flush=True)
        for row in found.rows:
            figures = f"{row.median:12,.1f} {row.unit}" if row.median is not None else ""
            spread = f" ({row.p10:,.1f} to {row.p90:,.1f})" if row.p10 is not None else ""
            words = f"{row.allocator:16} {row.workload:14} {figures}{spread} {row.outcome}"
            print(words, flush=True)
        options.output.write_bytes(msgspec.json.encode(report))


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="result file")
    parser.add_argument(
        "--time-limit", type=int, default=200, help="seconds for all; each part has its own too"
    )
    parser.add_argument("--part", choices=PARTS, help="this one alone, in this process")
    parser.add_argument(
        "--cap-gib", type=int, default=106, help="what an allocator may take of the full card"
    )
    parser.add_argument(
        "--fill-gib", type=int, default=100, help="what is allocated of that before the holes"
    )
    options = parser.parse_args()
    if options.part is None:
        run_all(options)
    else:
        measure_part(options.part, options)


if __name__ == "__main__":
    main()
