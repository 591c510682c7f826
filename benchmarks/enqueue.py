"""Measures what an enqueue costs on the simulated GPU, and whether its memory stays bounded."""

import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import machine
import msgspec
import programs

GOAL_NS_CHECKER_OFF = 2000.0
GOAL_NS_CHECKER_ON = 5000.0
# Resident memory may still settle after the first tenth of the long run; more than this is growth.
GOAL_GROWTH_BYTES = 16 * 1024 * 1024


class Case(msgspec.Struct):
    """One case: real nanoseconds of one enqueue. drain_median is beside it: what the final
    synchronisation added, spread over the enqueues."""

    operation: str
    call: str
    streams: int
    synchronised: bool
    checker: bool
    unit: str
    median: float
    p10: float
    p90: float
    values: list[float]
    drain_median: float
    resident_growth_bytes: float
    goal_ns: float = 0.0
    met: bool = False


class Mixed(msgspec.Struct):
    """The long run: resident memory after every tenth, and what it grew by after the first."""

    operations: int
    synchronised: bool
    checker: bool
    seconds: float
    resident_bytes: list[float]
    growth_bytes: float
    goal_growth_bytes: int = GOAL_GROWTH_BYTES
    met: bool = False


class Report(msgspec.Struct):
    benchmark: str
    simulated: bool
    profile: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    date: str
    operations: int
    repetitions: int
    synchronise_every: int
    cases: list[Case]
    mixed: list[Mixed]


def judge(report: Report) -> None:
    """Sets goals and whether they are met; the drain counts, since somebody has to pay it."""
    for case in report.cases:
        case.goal_ns = GOAL_NS_CHECKER_ON if case.checker else GOAL_NS_CHECKER_OFF
        case.met = case.median + case.drain_median <= case.goal_ns
    for mixed in report.mixed:
        mixed.met = mixed.growth_bytes <= mixed.goal_growth_bytes


def markdown(report: Report) -> str:
    lines = [
        f"Simulated GPU ({report.profile}), virtual clock, no data, on {report.machine['cpu']}, "
        f"{report.date[:10]}; {report.operations:,} enqueues, median of {report.repetitions}. "
        f"Goal: {GOAL_NS_CHECKER_OFF:,.0f} ns with the checker off, "
        f"{GOAL_NS_CHECKER_ON:,.0f} ns with it on.",
        "",
        "| call | streams | synchronised | checker | ns a call (p10 to p90) | drain | met |",
        "|---|---:|---|---|---:|---:|---|",
    ]
    every = f"every {report.synchronise_every:,}"
    lines += [
        f"| {case.call} | {case.streams} | {every if case.synchronised else 'never'} "
        f"| {'on' if case.checker else 'off'} "
        f"| {case.median:,.0f} ({case.p10:,.0f} to {case.p90:,.0f}) "
        f"| {case.drain_median:,.0f} | {'yes' if case.met else 'no'} |"
        for case in report.cases
    ]
    lines += [
        "",
        "| long run | synchronised | checker | ns a call | resident at 10 % | growth then | met |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    lines += [
        f"| {mixed.operations:,} mixed | {every if mixed.synchronised else 'never'} "
        f"| {'on' if mixed.checker else 'off'} "
        f"| {mixed.seconds / mixed.operations * 1e9:,.0f} "
        f"| {mixed.resident_bytes[0] / 2**20:.1f} MiB | {mixed.growth_bytes / 2**20:.1f} MiB "
        f"| {'yes' if mixed.met else 'no'} |"
        for mixed in report.mixed
    ]
    return "\n".join(lines)


def measure(options: Namespace) -> Report:
    programs.require_files(options.binary, options.sim_library, options.kernels)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "enqueue.json"
        command = [options.binary, "--sim-library", options.sim_library]
        command += ["--kernels", options.kernels, "--json", path]
        command += ["--operations", options.operations, "--mixed", options.mixed]
        command += ["--repetitions", options.repetitions, "--profile", options.profile]
        programs.run([str(part) for part in command])
        report = msgspec.json.decode(path.read_bytes(), type=Report)
    native = report.machine
    report.machine = msgspec.to_builtins(machine.collect()) | {"compiler": native["compiler"]}
    # Both ways of the checker were run: each case says which it was.
    del report.settings["checker"]
    judge(report)
    return report


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    programs.add_arguments(parser, "enqueue", "enqueue_sim.json")
    parser.add_argument("--profile", default="h200")
    parser.add_argument("--operations", type=int, default=1_000_000, help="in one repetition")
    parser.add_argument("--mixed", type=int, default=10_000_000, help="in the long run")
    parser.add_argument("--repetitions", type=int, default=5)
    return parser.parse_args()


def main() -> int:
    options = parse()
    report = measure(options)
    programs.publish(report, markdown(report), options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
