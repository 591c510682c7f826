"""Frameworks with their own allocator and with vramkit: are the results equal, what does it cost?

Each row runs in a process of its own. One that fails is a row with its error; the others go on.
"""

import os
import shutil
import sys
import tempfile
import time
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import children
import machine
import msgspec
import programs
from frameworks_rows import CASES, Case, Report, Row, compare, fill, last_words, line, markdown
from frameworks_work import Part, versions

DEFAULT_OUTPUT = programs.RESULTS / "frameworks_h200.json"
ERROR_CHARACTERS = 4000


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
    status, words = children.run(
        command, path.with_suffix(".txt"), environment(folder, allocator), most
    )
    row.seconds = round(time.perf_counter() - start, 1)
    if path.is_file():
        fill(row, msgspec.json.decode(path.read_bytes(), type=Part))
    if status != 0:
        told = row.error or words
        print(told[-ERROR_CHARACTERS:], file=sys.stderr)
        row.error = f"{children.how_it_ended(status, most)}\n{last_words(told)}".strip()
    return row


def environment(folder: Path, allocator: str) -> dict[str, str]:
    """One cache of compiled code for all, so that all allocators run the very same kernels."""
    expandable = str(allocator == "native_expandable")
    return {
        **os.environ,
        "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONFAULTHANDLER": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_DETERMINISTIC": "1",
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


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
        "--time-limit", type=float, default=480, help="seconds of the whole (default: %(default)s)"
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
