"""What a replay says each allocator holds, against a real run of the same PyTorch program; and what
recording costs.

    python benchmarks/lab_replay.py FOLDER                  # on a card, at most 480 s
    python benchmarks/lab_replay.py FOLDER --driver sim     # a trial: no figure of it says anything

Writes FOLDER/lab_replay.json, what the processes say, and the two recordings.
"""

import sys
from pathlib import Path

import machine
import msgspec
import programs
from changing_shapes import say
from changing_shapes_rows import EXPANDABLE, NATIVE, VRAMKIT
from lab_runs import TRIAL, FailedError, Runner, parser, trained
from lab_runs import VRAMKIT as COMMAND

from vramkit.lab.result import load
from vramkit.lab.samples import FEWEST, Spread
from vramkit.lab.traces import read_traces, write_plain

NEAR = 0.05
"""The goal: so far may a replay be from the real run."""
SLOWER = 0.05
"""The goal: so much may recording cost."""
SUBJECTS = {NATIVE: "torch", EXPANDABLE: "torch_expandable", VRAMKIT: "pool"}
SECONDS = 480.0
REPLAY_SECONDS = 150
"""Of each of the two replays; what is left of the allocators then has no row."""


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


class Result(msgspec.Struct):
    machine: machine.Machine
    simulated: bool
    held: list[Held]
    slowdown: list[float] = []
    """Median round under `vramkit record` over that without, less 1: of each pair of processes."""
    round_trip: bool | None = None
    """The trace is the same after it was written and read again."""
    outcomes: dict[str, str] = {}
    """Of each subject that the recording of the driver's calls was replayed on."""
    errors: list[str] = []

    @property
    def complete(self) -> bool:
        return not self.errors and self.round_trip is True and all(each.real for each in self.held)


def measure(runner: Runner) -> Result:
    held = [
        Held(allocator, subject)
        for allocator, subject in SUBJECTS.items()
        if runner.driver == "cuda" or subject == "pool"
    ]
    result = Result(machine.collect(), runner.driver == "sim", held)
    snapshot = runner.folder / "snapshot.pickle" if runner.driver == "cuda" else TRIAL
    for step in (real_runs, replayed, recorded, round_trip):
        try:
            step(runner, result, snapshot)
        except (FailedError, OSError, ValueError) as error:
            result.errors.append(str(error))
            say(str(error))
        programs.write(result, runner.folder / "lab_replay.json")
    return result


def real_runs(runner: Runner, result: Result, snapshot: Path) -> None:
    """The one with PyTorch's own allocator writes the snapshot."""
    for held in result.held:
        name, options = trained(runner.driver)
        if held.allocator == NATIVE:
            options = options | {"snapshot": snapshot}
        options = options | {"rounds": 1}  # events of two rounds are enough to be replayed
        found = runner.program(f"real_{held.allocator}", name, allocator=held.allocator, **options)
        held.real = found.held


def replayed(runner: Runner, result: Result, snapshot: Path) -> None:
    output = runner.folder / "replayed.json"
    replay(runner, "replayed", snapshot, output)
    for held in result.held:
        row = next(row for row in load(output).rows if row.subject == held.subject)
        values = row.values.get("held")
        held.replayed = round(max(values)) if values else None
        held.error = row.why


def recorded(runner: Runner, result: Result, snapshot: Path) -> None:
    """Pairs of processes, of which each begins every second one; the last recording is replayed."""
    trace = runner.folder / "recorded.csv.gz"
    under = [*COMMAND, "record", "-o", str(trace), "--"]
    name, options = trained(runner.driver)
    for number in range(FEWEST):
        medians = {}
        for how in ("plain", "recorded") if number % 2 else ("recorded", "plain"):
            found = runner.program(
                f"{how}_{number}", name, before=under if how == "recorded" else (), **options
            )
            medians[how] = Spread.of(found.milliseconds).median
        result.slowdown.append(medians["recorded"] / medians["plain"] - 1)
    output = runner.folder / "recorded.json"
    replay(runner, "recorded", trace, output)
    result.outcomes = {row.subject: row.outcome for row in load(output).rows}


def replay(runner: Runner, name: str, trace: Path, output: Path) -> None:
    words = ["--quick", "--repetitions", 1, "--driver", runner.driver, "--output", output]
    words += ["--time-limit", REPLAY_SECONDS]
    runner.vramkit(f"replay_{name}", "replay", trace, *words, "--html", output.with_suffix(".html"))


def round_trip(runner: Runner, result: Result, snapshot: Path) -> None:
    """Blocks, sizes, streams and order; the plain format has no times and no threads."""
    (trace, *_) = read_traces(snapshot)
    again = runner.folder / "again.csv.gz"
    write_plain(trace, again)
    (read,) = read_traces(again)
    same = ("kinds", "what", "sizes", "peak_in_use", "stream_count")
    result.round_trip = all(getattr(trace, each) == getattr(read, each) for each in same)


def table(result: Result) -> str:
    lines = ["| allocator | real run, GB | replayed, GB | off |", "|---|---:|---:|---:|"]
    for held in result.held:
        real, said = (f"{each / 1e9:.2f}" if each else "-" for each in (held.real, held.replayed))
        off = held.error or "not measured"
        if held.off is not None:
            off = f"{held.off:+.1%}{'' if abs(held.off) <= NEAR else ', above the goal of 5 %'}"
        lines.append(f"| `{held.subject}` | {real} | {said} | {off} |")
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
    lines += ["", f"Round trip exact: {result.round_trip}. Replayed on: {result.outcomes}."]
    if result.simulated:
        lines += ["", "A trial on the simulated GPU: none of these figures says anything."]
    return "\n".join([*lines, *result.errors])


def main() -> int:
    options = parser(__doc__ or "", SECONDS).parse_args()
    result = measure(Runner(options.folder, options.driver, options.time_limit))
    programs.show(table(result))
    return 0 if result.complete else 1


if __name__ == "__main__":
    sys.exit(main())
