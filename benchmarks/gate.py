"""Measures what the gate adds to a kernel launch: forwarding alone, and recording.

    python benchmarks/gate.py --driver cuda

Processes without the gate, with it and with a recording take turns, so that a machine that becomes
slower or faster does so for all three. The added time is the median over the rounds.
"""

import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

import machine
import msgspec
import programs

from vramkit.launch import Launch, run_program
from vramkit.launch.gate import gate_launch

GOAL_ADDED_NS = 50.0
MODES = ("native", "forwarding", "recording")


class Launches(msgspec.Struct, frozen=True):
    """Of one process: nanoseconds of the host for one launch."""

    simulated: bool
    gpu: str
    median: float
    p10: float
    p90: float


class Case(msgspec.Struct, frozen=True):
    streams: int
    mode: str
    unit: str
    median: float
    medians: list[float]
    """One a round."""
    added: float
    """Over "native" of the same round, in the median."""
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
    if mode == "native":
        ended = run_program(Launch(words, variables), capture=True)
    else:
        if mode == "recording":
            trace = folder / "trace"
            trace.mkdir(exist_ok=True)
            variables["VRAMKIT_GATE_TRACE"] = str(trace)
        with gate_launch(words, variables) as launch:
            ended = run_program(launch, capture=True)
    if ended.status != 0:
        sys.exit(f"{words[0]} ended with status {ended.status}: {ended.stderr}")
    if mode == "recording" and not any((folder / "trace").iterdir()):
        sys.exit("nothing was recorded: the program did not go through the gate")
    return msgspec.json.decode(result.read_bytes(), type=Launches)


def case(streams: int, mode: str, measured: dict[str, list[Launches]]) -> Case:
    medians = [each.median for each in measured[mode]]
    native = [each.median for each in measured["native"]]
    added = statistics.median(ours - theirs for ours, theirs in zip(medians, native, strict=True))
    return Case(
        streams=streams,
        mode=mode,
        unit="ns",
        median=statistics.median(medians),
        medians=medians,
        added=added,
        met=added <= GOAL_ADDED_NS,
    )


def measure(options: Namespace) -> Report:
    programs.require_files(options.binary, options.kernels)
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for streams in (1, 4):
            measured: dict[str, list[Launches]] = {mode: [] for mode in MODES}
            for _ in range(options.rounds):
                for mode in MODES:
                    measured[mode].append(run(options, mode, streams, Path(folder)))
            cases += [case(streams, mode, measured) for mode in MODES]
    first = measured["native"][0]
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
        f"median of {report.rounds} rounds. Goal: {GOAL_ADDED_NS:.0f} ns added at most.",
        "",
        "| streams | gate | ns a launch | added, ns | met |",
        "|---:|---|---:|---:|---|",
    ]
    lines += [
        f"| {each.streams} | {each.mode} | {each.median:,.0f} "
        f"({min(each.medians):,.0f} to {max(each.medians):,.0f}) | {each.added:+,.0f} "
        f"| {'yes' if each.met else 'no'} |"
        for each in report.cases
    ]
    return "\n".join(lines)


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--driver", choices=("cuda", "sim"), required=True)
    programs.add_arguments(parser, "gate_launch", "gate.json")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=400, help="of 500 launches, a process")
    return parser.parse_args()


def main() -> int:
    options = parse()
    report = measure(options)
    programs.publish(report, markdown(report), options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
