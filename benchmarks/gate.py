"""Measures what the gate adds to a kernel launch: forwarding alone, recording, and sharing.

    python benchmarks/gate.py --driver cuda

In each process, batches of launches go through the gate and around it in turn: a launch takes some
microseconds on a card, which differ more from run to run than the gate adds.
"""

import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

import machine
import msgspec
import programs

from vramkit.launch import run_program
from vramkit.launch.gate import gate_launch

GOAL_ADDED_NS = 50.0
MODES = ("forwarding", "recording", "sharing")
STREAMS = (1, 4)


class Nanoseconds(msgspec.Struct, frozen=True):
    """For one launch, over the batches of a process."""

    median: float
    p10: float
    p90: float


class Launches(msgspec.Struct, frozen=True):
    """Of one process."""

    simulated: bool
    gpu: str
    around: Nanoseconds
    through: Nanoseconds
    added: Nanoseconds


class Case(msgspec.Struct, frozen=True):
    streams: int
    mode: str
    unit: str
    around: float
    through: float
    added: float
    """The median over the rounds, of the medians of a process."""
    all_added: list[float]
    """One a round."""
    met: bool


class Report(msgspec.Struct, frozen=True):
    benchmark: str
    simulated: bool
    gpu: str
    machine: machine.Machine
    rounds: int
    batches: int
    cases: list[Case]


def run(options: Namespace, mode: str, streams: int, folder: Path) -> Launches:
    result = folder / "result.json"
    command = [options.binary, "--driver", options.driver, "--kernels", options.kernels]
    command += ["--sim-library", options.sim_library, "--batches", options.batches]
    words = [str(word) for word in (*command, "--streams", streams, "--json", result)]
    variables = {}
    if options.driver == "sim":
        variables["VRAMKIT_GATE_DRIVER"] = str(options.sim_library)
    trace = folder / "trace"
    if mode == "recording":
        trace.mkdir(exist_ok=True)
        variables["VRAMKIT_GATE_TRACE"] = str(trace)
    elif mode == "sharing":
        variables["VRAMKIT_SHARE"] = "swap"
    with gate_launch(words, variables) as launch:
        ended = run_program(launch, capture=True)
    if ended.status != 0:
        sys.exit(f"{words[0]} ended with status {ended.status}: {ended.stderr}")
    if mode == "recording" and not any(trace.iterdir()):
        sys.exit("nothing was recorded: the program did not go through the gate")
    return msgspec.json.decode(result.read_bytes(), type=Launches)


def case(streams: int, mode: str, measured: list[Launches]) -> Case:
    added = [each.added.median for each in measured]
    return Case(
        streams=streams,
        mode=mode,
        unit="ns",
        around=statistics.median(each.around.median for each in measured),
        through=statistics.median(each.through.median for each in measured),
        added=statistics.median(added),
        all_added=added,
        met=statistics.median(added) <= GOAL_ADDED_NS,
    )


def measure(options: Namespace) -> Report:
    programs.require_files(options.binary, options.kernels)
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for streams in STREAMS:
            measured: dict[str, list[Launches]] = {mode: [] for mode in MODES}
            for _ in range(options.rounds):
                for mode in MODES:
                    measured[mode].append(run(options, mode, streams, Path(folder)))
            cases += [case(streams, mode, measured[mode]) for mode in MODES]
    first = measured[MODES[0]][0]
    return Report(
        benchmark="gate",
        simulated=first.simulated,
        gpu=first.gpu,
        machine=machine.collect(),
        rounds=options.rounds,
        batches=options.batches,
        cases=cases,
    )


def markdown(report: Report) -> str:
    on = f"simulated GPU ({report.gpu})" if report.simulated else report.gpu
    lines = [
        f"One launch of an empty kernel, {on}, {report.machine.cpu}, {report.machine.date[:10]}; "
        f"medians of {report.rounds} rounds. Goal: {GOAL_ADDED_NS:.0f} ns added at most.",
        "",
        "| streams | gate | around, ns | through, ns | added, ns | met |",
        "|---:|---|---:|---:|---:|---|",
    ]
    lines += [
        f"| {each.streams} | {each.mode} | {each.around:,.0f} | {each.through:,.0f} "
        f"| {each.added:+,.1f} ({min(each.all_added):+,.1f} to {max(each.all_added):+,.1f}) "
        f"| {'yes' if each.met else 'no'} |"
        for each in report.cases
    ]
    return "\n".join(lines)


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--driver", choices=("cuda", "sim"), required=True)
    programs.add_arguments(parser, "gate_launch", "gate.json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=2000, help="of 100 launches, a process")
    return parser.parse_args()


def main() -> int:
    options = parse()
    report = measure(options)
    programs.publish(report, markdown(report), options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
