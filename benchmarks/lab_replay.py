"""What a replay says each allocator holds, against a real run of the same PyTorch program where
PyTorch runs on it; and what recording costs.

    python benchmarks/lab_replay.py FOLDER                  # on a card, at most 480 s
    python benchmarks/lab_replay.py FOLDER --driver sim     # a trial: no figure of it says anything

Writes FOLDER/lab_replay.json, what the processes say, and the two recordings. Called again, it does
what is not done yet. Status 0: all figures are there.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import machine
import msgspec
import programs
from changing_shapes import say
from changing_shapes_rows import EXPANDABLE, NATIVE, VRAMKIT
from lab_runs import TRIAL, Begun, FailedError, Runner, begun, parser, trained
from lab_runs import VRAMKIT as COMMAND
from msgspec import field

from vramkit.lab.result import Report, Row, load
from vramkit.lab.samples import FEWEST, Spread
from vramkit.lab.traces import Trace, read_traces, write_plain
from vramkit.lab.traces.trace import Kind

NEAR = 0.05
"""The goal: so far may a replay be from the real run."""
SLOWER = 0.05
"""The goal: so much may recording cost."""
RECORDINGS = ("snapshot", "recording")
SUBJECTS = {NATIVE: "torch", EXPANDABLE: "torch_expandable", VRAMKIT: "pool"}
FILE = "lab_replay.json"
SECONDS = 480.0
REPLAY_SECONDS = 150
"""Of each call of a replay; the next one goes on."""
ALL = "*"


class Held(msgspec.Struct):
    """Of one allocator, at most, in bytes."""

    allocator: str
    subject: str
    real: int | None = None
    replayed: int | None = None
    error: str = ""

    @property
    def off(self) -> float | None:
        if not self.real or not self.replayed:
            return None
        return self.replayed / self.real - 1


class Replayed(msgspec.Struct):
    """The snapshot on one subject; `held` at most, in bytes."""

    outcome: str
    held: int | None = None


class Result(Begun):
    held: list[Held]
    slowdown: list[float] = field(default_factory=list)
    """Median round under `vramkit record` over that without, less 1: of each pair of processes."""
    round_trip: dict[str, bool] = field(default_factory=dict)
    """Of the snapshot and the recording: the same trace after it was written and read again."""
    on_all: dict[str, Replayed] = field(default_factory=dict)
    """By subject: the snapshot on each."""
    outcomes: dict[str, str] = field(default_factory=dict)
    """Of each subject that the recording of the driver's calls was replayed on."""
    errors: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return (
            not self.errors
            and all(each.real and each.replayed for each in self.held)
            and len(self.slowdown) == FEWEST
            and self.round_trip.keys() == set(RECORDINGS)
            and all(self.round_trip.values())
            and bool(self.outcomes)
            and "not run" not in self.outcomes.values()
            and bool(self.on_all)
            and all(each.outcome != "not run" for each in self.on_all.values())
        )


def measure(runner: Runner) -> Result:
    held = [
        Held(allocator, subject)
        for allocator, subject in SUBJECTS.items()
        if runner.driver == "cuda" or subject == "pool"
    ]
    result = Result(machine.collect(), runner.driver == "sim", held)
    result = begun(runner.folder / FILE, result)
    result.errors = []
    snapshot = runner.folder / "snapshot.pickle" if runner.driver == "cuda" else TRIAL
    for step in (real_runs, replayed, recorded, round_trip, replayed_on_all):
        try:
            step(runner, result, snapshot)
        except (FailedError, OSError, ValueError) as error:
            result.errors.append(str(error))
            say(str(error))
        keep(runner, result)
    return result


def keep(runner: Runner, result: Result) -> None:
    programs.write(result, runner.folder / FILE)


def real_runs(runner: Runner, result: Result, snapshot: Path) -> None:
    """The one with PyTorch's own allocator writes the snapshot."""
    for held in result.held:
        if held.real:
            continue
        name, options = trained(runner.driver)
        if held.allocator == NATIVE:
            options = options | {"snapshot": snapshot}
        options = options | {"rounds": 1}  # events of two rounds are enough to be replayed
        found = runner.program(f"real_{held.allocator}", name, allocator=held.allocator, **options)
        held.real = found.held
        keep(runner, result)


def replayed(runner: Runner, result: Result, snapshot: Path) -> None:
    subjects = [held.subject for held in result.held]
    report = replay(runner, "replayed", snapshot, subjects)
    for held in result.held:
        row = next(row for row in report.rows if row.subject == held.subject)
        held.replayed, held.error = held_by(row), row.why


def replayed_on_all(runner: Runner, result: Result, snapshot: Path) -> None:
    """On the rest too, last: they are compared with no real run."""
    report = replay(runner, "replayed", snapshot, [ALL])
    result.on_all = {row.subject: Replayed(row.outcome, held_by(row)) for row in report.rows}


def held_by(row: Row) -> int | None:
    values = row.values.get("held")
    return round(max(values)) if values else None


def recorded(runner: Runner, result: Result, snapshot: Path) -> None:
    """Pairs of processes, of which each begins every second one; the last recording is replayed."""
    trace = runner.folder / "recorded.csv.gz"
    under = [*COMMAND, "record", "-o", str(trace), "--"]
    name, options = trained(runner.driver)
    for number in range(len(result.slowdown), FEWEST):
        medians = {}
        for how in ("plain", "recorded") if number % 2 else ("recorded", "plain"):
            found = runner.program(
                f"{how}_{number}", name, before=under if how == "recorded" else (), **options
            )
            medians[how] = Spread.of(found.milliseconds).median
        result.slowdown.append(medians["recorded"] / medians["plain"] - 1)
        keep(runner, result)
    report = replay(runner, "recorded", trace)
    result.outcomes = {}
    for row in report.rows:  # of each trace that the recording has
        if result.outcomes.get(row.subject, "measured") == "measured":
            result.outcomes[row.subject] = row.outcome


def replay(runner: Runner, name: str, trace: Path, subjects: Sequence[str] = ()) -> Report:
    """On these subjects, else on all. What an earlier call has measured is not measured again."""
    output = runner.folder / f"{name}.json"
    words: list[object] = ["--quick", "--repetitions", 1, "--driver", runner.driver]
    words += ["--time-limit", REPLAY_SECONDS, "--html", output.with_suffix(".html")]
    words += ["--subjects", ",".join(subjects)] if subjects else []
    words += ["--continue" if output.exists() else "--output", output]
    runner.vramkit(f"replay_{name}", "replay", trace, *words)
    return load(output)


def round_trip(runner: Runner, result: Result, snapshot: Path) -> None:
    for name, path in zip(RECORDINGS, (snapshot, runner.folder / "recorded.csv.gz"), strict=True):
        traces = read_traces(path)
        again = runner.folder / f"again_{name}.csv.gz"
        result.round_trip[name] = all(comes_back(trace, again) for trace in traces)


def comes_back(trace: Trace, again: Path) -> bool:
    """Blocks, sizes, streams and their order; the plain format has no work, times and threads."""
    write_plain(trace, again)
    (read,) = read_traces(again)
    return blocks(trace) == blocks(read) and trace.peak_in_use == read.peak_in_use


def blocks(trace: Trace) -> list[tuple[int, ...]]:
    """Streams are numbered as their blocks come: work on others may have come before."""
    streams: dict[int, int] = {}
    found = []
    for kind, what, stream in zip(trace.kinds, trace.what, trace.streams, strict=True):
        if kind == Kind.ALLOCATE:
            number = streams.setdefault(stream, len(streams))
            found.append((kind, what, trace.sizes[what], number))
        elif kind == Kind.FREE:
            found.append((kind, what))
    return found


def table(result: Result) -> str:
    lines = ["| allocator | real run, GB | replayed, GB | off |", "|---|---:|---:|---:|"]
    for held in result.held:
        real, said = (f"{each / 1e9:.2f}" if each else "-" for each in (held.real, held.replayed))
        off = held.error or "not measured"
        if held.off is not None:
            off = f"{held.off:+.1%}{'' if abs(held.off) <= NEAR else ', above the goal of 5 %'}"
        lines.append(f"| `{held.subject}` | {real} | {said} | {off} |")
    compared = {held.subject for held in result.held}
    for subject, each in result.on_all.items():
        if subject not in compared:
            said = f"{each.held / 1e9:.2f}" if each.held else each.outcome
            lines.append(f"| `{subject}` | - | {said} | |")
    if result.slowdown:
        spread = Spread.of(result.slowdown)
        goal = f"cannot be said, the median is {'below' if spread.median < SLOWER else 'above'} it"
        if spread.p90 < SLOWER or spread.p10 > SLOWER:
            goal = "met" if spread.p90 < SLOWER else "not met"
        lines += [
            "",
            f"Recording makes a round {spread.median:+.1%} slower ({spread.p10:+.1%} to "
            f"{spread.p90:+.1%}, {spread.count} pairs); goal below {SLOWER:.0%}: {goal}.",
        ]
    on_all = {subject: each.outcome for subject, each in result.on_all.items()}
    lines += ["", f"Round trip exact: {counted(result.round_trip)}."]
    lines += [f"The snapshot was replayed on: {counted(on_all)}."]
    lines += [f"The recording was replayed on: {counted(result.outcomes)}."]
    if result.simulated:
        lines += ["", "A trial on the simulated GPU: none of these figures says anything."]
    return "\n".join([*lines, *result.errors])


def counted(found: Mapping[str, object]) -> str:
    return ", ".join(f"{name} ({value})" for name, value in found.items()) or "none"


def main() -> int:
    options = parser(__doc__ or "", SECONDS).parse_args()
    if options.again:
        for name in (FILE, "replayed.json", "recorded.json"):
            (options.folder / name).unlink(missing_ok=True)
    result = measure(Runner(options.folder, options.driver, options.time_limit))
    programs.show(table(result))
    return 0 if result.complete else 1


if __name__ == "__main__":
    sys.exit(main())
