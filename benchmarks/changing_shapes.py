"""PyTorch programs with changing shapes, with three allocators: memory held, time, equal results.

  measure FOLDER    runs the programs and writes FOLDER/changing_shapes.json, table.md and logs
  record FOLDER     writes a trace of the allocations of each program, FOLDER/NAME.csv.gz
  publish FOLDER    keeps that result under results/ and puts its table into the docs

Each row is a process of its own. One that fails is a row with its error; the others go on.
"""

import os
import sys
import time
import traceback
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

import children
import machine
import msgspec
import programs
from changing_shapes_rows import (
    ALLOCATORS,
    EXPANDABLE,
    NATIVE,
    VRAMKIT,
    Measured,
    Report,
    Row,
    merged,
)
from changing_shapes_table import markdown, written
from frameworks_rows import first_difference, last_words, note
from frameworks_work import versions
from torch_programs.catalog import PROGRAMS

from vramkit.lab.traces import read_traces

RESULT = programs.RESULTS / "changing_shapes_h200.json"
DOCUMENT = programs.ROOT / "docs" / "integrations.md"
PACKAGES = ("vramkit", "torch", "transformers")
ERROR_CHARACTERS = 3000
PROCESS_SECONDS = 60.0
WARM_UP_SECONDS = 120.0
LEAST_SECONDS = 8.0
"""A process that would have less is not started."""

# Run before the first row: reads the packages from disk once, and says early what is missing.
WARM_UP = """
import torch
print("torch", torch.__version__, "CUDA", torch.version.cuda, torch.cuda.is_available())
for name in ("transformers", "vramkit", "vramkit.integrations.torch"):
    try:
        __import__(name)
    except Exception as error:
        print(f"{name} cannot be imported: {error!r}")
if torch.cuda.is_available():
    torch.zeros(1, device="cuda").item()
    print(torch.cuda.get_device_name())
"""


class Runner:
    """Starts the processes one after the other, within the time limit of the whole."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.folder: Path = options.folder
        self.logs: Path = options.logs or self.folder / "logs"
        for folder in (self.folder, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        for left_over in self.logs.glob("*.json"):
            left_over.unlink()  # of an earlier run: its results would be compared with ours
        self._deadline = time.monotonic() + options.time_limit

    @property
    def left(self) -> float:
        return self._deadline - time.monotonic()

    def run(
        self, name: str, arguments: list[str], allocator: str, most: float
    ) -> tuple[str, str, float]:
        """Error (empty where all went well), words and seconds of one process."""
        most = min(most, self.left)
        start = time.monotonic()
        status, words = children.run(
            [sys.executable, *arguments], self.logs / f"{name}.txt", environment(allocator), most
        )
        error = "" if status == 0 else children.how_it_ended(status, most)
        return error, words, time.monotonic() - start

    def warm_up(self) -> list[str]:
        error, words, seconds = self.run("warm_up", ["-c", WARM_UP], NATIVE, WARM_UP_SECONDS)
        say(f"warm-up: {seconds:.1f} s\n{words.strip()}")
        notes = [line for line in words.splitlines() if "cannot be imported" in line]
        return [*notes, *([f"warm-up {error}: {last_words(words)}"] if error else [])]


def environment(allocator: str) -> dict[str, str]:
    """Both names of PyTorch's variable: the older is deprecated, the newer not known everywhere."""
    settings = f"expandable_segments:{allocator == EXPANDABLE}"
    return {
        **os.environ,
        "PYTORCH_ALLOC_CONF": settings,
        "PYTORCH_CUDA_ALLOC_CONF": settings,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HF_HUB_OFFLINE": "1",
        "PYTHONFAULTHANDLER": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def measure(options: Namespace) -> int:
    runner = Runner(options)
    report = Report(
        benchmark="changing_shapes",
        device="",
        size=options.size,
        machine=machine.collect(),
        packages=versions({name: (name,) for name in PACKAGES}),
        passes=options.passes,
        seconds=options.seconds,
        complete=False,
        notes=[],
        verdicts=[],
        rows=[],
    )
    report.device = report.machine.gpu if options.device == "cuda" else options.device
    report.notes = runner.warm_up()
    # On a CPU there is nothing to install: two equal rows show that the benchmark itself works.
    allocators = ALLOCATORS if options.device == "cuda" else ALLOCATORS[:2]
    for number in range(options.passes):
        for program in options.only or PROGRAMS:
            # Turned around in every second pass, so that nobody is always the first.
            for allocator in allocators[:: -1 if number % 2 else 1]:
                measure_row(runner, report, program, allocator, number)
                keep(report, runner.folder)
            if not report.row(program, NATIVE).error:
                compare(report, runner.logs, program, number)
                keep(report, runner.folder)
    report.complete = not any(row.error for row in report.rows)
    keep(report, runner.folder)
    table = markdown(report)
    (runner.folder / "table.md").write_text(table + "\n", "utf-8")
    programs.show(table)
    return 0 if report.complete else 1


def measure_row(runner: Runner, report: Report, program: str, allocator: str, number: int) -> None:
    """One process; whatever happens to it ends up in its row."""
    options = runner.options
    row = report.row(program, allocator)
    if number and (row.error or runner.left < max(LEAST_SECONDS, 1.5 * row.seconds)):
        return  # the first pass has said what there is to say
    if runner.left < LEAST_SECONDS:
        row.error = f"not started: the time limit of {options.time_limit:.0f} s is used up"
        return
    name = f"{program}_{allocator}_{number}"
    path = runner.logs / f"{name}.json"
    path.unlink(missing_ok=True)
    rounds = report.row(program, NATIVE).rounds or options.rounds
    arguments = [__file__, "child", str(path), program, allocator, "--size", options.size]
    arguments += ["--device", options.device, "--rounds", str(rounds)]
    arguments += ["--seconds", str(options.seconds)]
    error, words, seconds = runner.run(name, arguments, allocator, PROCESS_SECONDS)
    measured = read(path)
    row.take(measured, seconds)
    if error:
        told = measured.error or words
        say(told[-ERROR_CHARACTERS:])
        row.error = f"{error}\n{last_words(told)}".strip()
    say(line(row, runner.left))


def read(path: Path) -> Measured:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Measured)
    except (OSError, msgspec.MsgspecError):
        return Measured()


def compare(report: Report, logs: Path, program: str, number: int) -> None:
    """Results of this pass, each against those of PyTorch's allocator."""
    native = read(logs / f"{program}_{NATIVE}_{number}.json")
    for row in report.rows:
        if row.program != program or row.allocator == NATIVE:
            continue
        ours = read(logs / f"{program}_{row.allocator}_{number}.json")
        if not ours.digest or not native.digest:
            continue
        row.equal = ours.digest == native.digest and row.equal is not False
        if ours.digest != native.digest:
            row.difference = first_difference(ours.figures, native.figures)


def keep(report: Report, folder: Path) -> None:
    """After each row: whatever stops us later, what was measured is kept."""
    report.judge()
    programs.write(report, folder / "changing_shapes.json")


def line(row: Row, left: float) -> str:
    figures = [
        f"{name} {value / 1e9:.2f} GB"
        for name, value in (
            ("in use", row.in_use_bytes),
            ("held", row.held_bytes),
            ("card", row.card_bytes),
        )
        if value is not None
    ]
    if row.median is not None:
        figures.append(f"{row.median:.0f} ms ({len(row.values)} rounds)")
    if words := note(row):
        figures.append(words)
    return f"{row.program} {row.allocator}: {', '.join(figures)}; {row.seconds} s, {left:.0f} left"


def child(options: Namespace) -> int:
    """Does the work of one row here. What went wrong is written too: the parent shows it."""

    def save(measured: Measured) -> None:
        options.folder.write_bytes(msgspec.json.encode(measured))

    # Not at the top: the parent, and who only wants the table, need no PyTorch.
    try:
        from changing_shapes_run import run

        measured = run(
            options.program,
            options.allocator,
            options.size,
            options.device,
            options.rounds,
            options.seconds,
            save,
        )
    except BaseException:
        measured = read(options.folder)
        measured.error = traceback.format_exc()
    save(measured)
    return 1 if measured.error else 0


def record(options: Namespace) -> int:
    """Each program in a process of its own, with PyTorch's allocator."""
    runner = Runner(options)
    runner.warm_up()
    failed = False
    for program in options.only or PROGRAMS:
        if runner.left < LEAST_SECONDS:
            say(f"{program}: not started, the time limit is used up")
            failed = True
            continue
        path = runner.folder / f"{program}.csv.gz"
        arguments = [__file__, "record-child", str(path), program, "--size", options.size]
        arguments += ["--rounds", str(options.rounds or 1)]
        error, words, _ = runner.run(f"{program}_trace", arguments, NATIVE, PROCESS_SECONDS)
        if error:
            failed = True
            say(f"{words[-ERROR_CHARACTERS:]}\n{program}: {error}")
            continue
        (trace,) = read_traces(path)
        say(f"{program}: {len(trace):,} events, in use {trace.peak_in_use / 1e9:.2f} GB")
    return 1 if failed else 0


def record_child(options: Namespace) -> int:
    from changing_shapes_record import record as recorded

    recorded(options.program, options.size, options.rounds, options.folder)
    return 0


def publish(options: Namespace) -> int:
    """Without a folder the table is made again from the result file, which stays as it is."""
    paths = [folder / "changing_shapes.json" for folder in options.folder] or [RESULT]
    for path in paths:
        if not path.is_file():
            sys.exit(f"there is no file {path}; `changing_shapes.py measure FOLDER` writes one")
    try:
        report = merged([msgspec.json.decode(path.read_bytes(), type=Report) for path in paths])
    except ValueError as error:
        sys.exit(f"{error}; publish them from one machine, or one of them alone")
    if report.size != "full" or not any(row.allocator == VRAMKIT for row in report.rows):
        sys.exit(
            f"{', '.join(map(str, paths))}: not of the full programs on a card "
            f"({report.device}, size {report.size})"
        )
    table = markdown(report)
    if options.folder:
        programs.write(report, RESULT)
    DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8"), table), "utf-8")
    programs.show(table)
    return 0


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("measure", help="runs the programs")
    traced = commands.add_parser("record", help="writes traces of allocations; needs a card")
    for command, limit in ((run, 480), (traced, 300)):
        command.add_argument("folder", type=Path, help="for results; made where it is missing")
        command.add_argument(
            "--logs",
            type=Path,
            help="folder for what the processes say and find, several files a row (default: "
            "FOLDER/logs)",
        )
        command.add_argument(
            "--time-limit",
            type=float,
            default=limit,
            help="seconds of the whole; later rows are not started (default: %(default)s)",
        )
        command.add_argument(
            "--only", nargs="+", choices=list(PROGRAMS), help="these programs alone"
        )
    run.add_argument(
        "--passes",
        type=int,
        default=1,
        help="how often each row has a process; later passes stop at the time limit and add to the "
        "times of the first (default: %(default)s)",
    )
    run.set_defaults(run=measure)
    traced.set_defaults(run=record)
    one = commands.add_parser("child", help="one row in this process")
    one_trace = commands.add_parser("record-child", help="one trace in this process")
    for command in (one, one_trace):
        command.add_argument("folder", type=Path, metavar="FILE")
        command.add_argument("program", choices=list(PROGRAMS))
    one.add_argument("allocator", choices=ALLOCATORS)
    one.set_defaults(run=child)
    one_trace.set_defaults(run=record_child)
    for command in (run, one):
        command.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
        command.add_argument(
            "--seconds",
            type=float,
            default=2.5,
            help="of timed rounds in a process; the first row of a program settles how many that "
            "are, 3 to 8 (default: %(default)s)",
        )
    for command in (run, traced, one, one_trace):
        command.add_argument(
            "--size",
            choices=("full", "tiny"),
            default="full",
            help="tiny: for a test, takes no memory to speak of",
        )
        command.add_argument(
            "--rounds", type=int, default=0, help="exactly so many (default: chosen; a trace has 1)"
        )
    shown = commands.add_parser("publish", help="the result file and the table of the docs")
    shown.add_argument(
        "folder",
        type=Path,
        nargs="*",
        help="what `measure` was given; programs of a later folder replace those of an earlier one",
    )
    shown.set_defaults(run=publish)
    options = parser.parse_args()
    if getattr(options, "passes", 1) < 1:
        parser.error(f"--passes is {options.passes}; it may be 1 or more")
    if getattr(options, "rounds", 0) < 0:
        parser.error(f"--rounds is {options.rounds}; it may be 0 or more")
    return options


def main() -> int:
    options = parse()
    status: int = options.run(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
