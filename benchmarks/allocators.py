"""Puts what run_on_gpu.sh measured into one result file, judges it, and writes the docs' table.

Without a folder the table is made again from the result file, which stays as it is.
"""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import machine
import msgspec
import programs
from allocator_goals import GOALS, judge
from allocator_table import Report, markdown
from rows import Row

DEFAULT_OUTPUT = programs.RESULTS / "allocators_h200.json"
DOCUMENT = programs.ROOT / "docs" / "allocators.md"
MARK = "<!-- From here on written by benchmarks/allocators.py -->"
RMM_RUNS = [f"rmm_{name}" for name in ("pool", "arena", "async", "binning")]


class NativeRun(msgspec.Struct):
    """The file of a native program."""

    complete: bool
    simulated: bool
    device: str
    driver_version: int
    settings: dict[str, Any] | None
    machine: dict[str, Any]
    date: str
    rows: list[Row]


class PythonRun(msgspec.Struct):
    """The file of python_allocators.py."""

    machine: machine.Machine
    packages: dict[str, str]
    missing: list[str]
    rows: list[Row]


def load(folder: Path) -> Report:
    """Whatever of the files is there; that of our pool must be."""
    ours = msgspec.json.decode((folder / "allocators.json").read_bytes(), type=NativeRun)
    report = Report(
        benchmark="allocators",
        simulated=ours.simulated,
        device=ours.device,
        driver_version=ours.driver_version,
        settings=ours.settings,
        machine=ours.machine,
        packages={},
        date=ours.date,
        complete=False,
        missing=[] if ours.complete else ["our native run did not end"],
        verdicts=[],
        rows=ours.rows,
    )
    for name in RMM_RUNS:
        path = folder / f"{name}.json"
        if not path.is_file():
            report.missing.append(f"{name}, native")
            continue
        peer = msgspec.json.decode(path.read_bytes(), type=NativeRun)
        if (peer.device, peer.simulated) != (ours.device, ours.simulated):
            sys.exit(f"the native runs are of two cards: {ours.device} and {peer.device}")
        report.rows += peer.rows
        if not peer.complete:
            report.missing.append(f"{name}, native: did not end")
    path = folder / "python.json"
    if path.is_file():
        python = msgspec.json.decode(path.read_bytes(), type=PythonRun)
        report.rows += python.rows
        report.missing += python.missing
        report.packages = python.packages
        compiler = {"compiler": ours.machine["compiler"]}
        report.machine = msgspec.to_builtins(python.machine) | compiler
    else:
        report.missing.append("the run from Python")
    report.complete = not report.missing
    report.verdicts = [judge(goal, report.rows) for goal in GOALS]
    return report


def written(document: str, table: str) -> str:
    """The document with this table behind the mark."""
    prose, mark, _ = document.partition(MARK)
    if not mark:
        sys.exit(f"{DOCUMENT} has no line '{MARK}', behind which the table belongs")
    return f"{prose}{MARK}\n\n{table}\n"


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="what run_on_gpu.sh was given")
    parser.add_argument(
        "--output",
        type=Path,
        default=DEFAULT_OUTPUT,
        help="result file (default: %(default)s); the docs show the default one",
    )
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.folder is None:
        programs.require_files(options.output)
        table = markdown(msgspec.json.decode(options.output.read_bytes(), type=Report))
        programs.show(table)
    else:
        programs.require_files(options.folder / "allocators.json")
        report = load(options.folder)
        if report.simulated and options.output == DEFAULT_OUTPUT:
            sys.exit(
                "the figures are of the simulated GPU; give them a file of their own: --output"
            )
        table = markdown(report)
        programs.publish(report, table, options.output)
    if options.output == DEFAULT_OUTPUT:
        DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8"), table), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
