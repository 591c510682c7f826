"""Measures sharing: what a switch costs, and what programs lose, on one card or a simulated one.

    python benchmarks/sharing.py --driver cuda                      # results/sharing_h200.json
    python benchmarks/sharing.py --driver sim --scale small --json FILE
    python benchmarks/sharing.py publish                            # the table of docs/sharing.md

Programs are unmodified scripts (sharing_programs), each a process. The daemon, its socket and its
settings are the benchmark's own. Rows that are in the result file already are not measured again,
unless they have an error or are named with --only.
"""

import sys
import time
import traceback
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import machine
import programs
import sharing_cases
from sharing_report import (
    CASES,
    DOCUMENT,
    Report,
    Row,
    document_table,
    figure,
    markdown,
    read,
    written,
)
from sharing_scale import SCALES
from sharing_session import FailedError

RESULT = programs.RESULTS / "sharing_h200.json"
MEASURES = {
    name: sharing_cases.mode(name.removeprefix("mode_"))
    if name.startswith("mode_")
    else getattr(sharing_cases, name)
    for name in CASES
}


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def measure_row(name: str, options: Namespace, most: float) -> Row:
    row = Row(name)
    repetitions = min(options.repetitions, 3) if name == "additions" else options.repetitions
    bench = sharing_cases.Bench(
        options.driver, SCALES[options.scale], options.programs == "pytorch", repetitions, most
    )
    start = time.monotonic()
    try:
        MEASURES[name](row, bench)
    except FailedError as error:
        row.error = str(error)
    except Exception:
        row.error = traceback.format_exc()
    row.seconds = round(time.monotonic() - start, 1)
    return row


def measure(options: Namespace) -> Report:
    report = read(options.json)
    fresh = new_report(options)
    if report is not None:
        ran = (report.simulated, report.scale, report.programs)
        if ran != (fresh.simulated, fresh.scale, fresh.programs):
            sys.exit(f"{options.json} is of other programs ({ran}); give another --json")
    report = report or fresh
    deadline = time.monotonic() + options.time_limit
    for name in options.only or CASES:
        known = report.row(name)
        if known is not None and not known.error and not options.only:
            say(f"{name}: known")
            continue
        left = deadline - time.monotonic()
        needed = CASES[name].seconds if options.scale == "full" else 5.0
        if left < needed:
            say(f"{name}: not started, {left:.0f} s are left")
            if known is None:
                report.keep(Row(name, error="not measured yet: no time was left"))
            continue
        say(f"{name}: {CASES[name].text} ...")
        row = measure_row(name, options, time.monotonic() + min(left, max(2 * needed, 45)))
        report.keep(row)
        # After each row: whatever stops us later, what was measured is kept.
        programs.write(report, options.json)
        told = row.error or f"{figure(row.value, CASES[name].unit)} {row.details}"
        say(f"{name}: {told} ({row.seconds:.0f} s)")
    programs.write(report, options.json)
    return report


def new_report(options: Namespace) -> Report:
    found = machine.collect()
    packages = {}
    for package in ("torch",) if options.programs == "pytorch" else ():
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            packages[package] = "unknown"
    simulated = options.driver == "sim"
    return Report(
        benchmark="sharing",
        simulated=simulated,
        scale=options.scale,
        programs=options.programs,
        gpu="simulated" if simulated else found.gpu,
        machine=found,
        packages=packages,
        repetitions=options.repetitions,
        rows=[],
    )


def publish(options: Namespace) -> int:
    table = document_table(options.json)
    DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8"), table), "utf-8")
    programs.show(table)
    return 0


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("measure", "publish"), default="measure")
    parser.add_argument("--driver", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument(
        "--programs",
        choices=("pytorch", "plain"),
        help="default: pytorch on a card where it is installed, else plain ones on the driver",
    )
    parser.add_argument(
        "--json", type=Path, default=RESULT, help="result file (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", choices=CASES, help="these rows alone, again")
    parser.add_argument("--repetitions", type=int, default=5, help="of rows that compare runs")
    parser.add_argument(
        "--time-limit", type=float, default=900, help="seconds of the whole (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.repetitions < 1:
        parser.error(f"--repetitions is {options.repetitions}; it may be 1 or more")
    if options.programs is None:
        torch = options.driver == "cuda" and find_spec("torch") is not None
        options.programs = "pytorch" if torch else "plain"
    if options.driver == "sim" and (options.scale, options.programs) != ("small", "plain"):
        parser.error("the simulated card runs --scale small and --programs plain")
    if options.driver == "sim" and options.json == RESULT:
        parser.error("give --json with --driver sim: the default file is a card's")
    return options


def main() -> int:
    options = parse()
    if options.what == "publish":
        return publish(options)
    report = measure(options)
    programs.show(markdown(report))
    return 1 if any(row.error for row in report.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
