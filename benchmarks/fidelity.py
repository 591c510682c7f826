"""Compares what the simulated GPU predicts with what a real card measured, scenario by scenario."""

import re
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import machine
import msgspec
import programs

GOAL_PERCENT = {"copy": 5.0}
GOAL_PERCENT_ELSE = 10.0

# Why a prediction is known to miss its goal. Shown only where it does miss it.
REASONS = {
    "call_event_query_pending": "a profile has one cost for cuEventQuery, passed or pending",
    "vmm_create_1GiB": "took 0.13 to 2.4 ms within and between the two runs",
    "call_event_record": "records in a row cost more than one between launches (0.33 us), "
    "which is what the profile has",
}


class Scenario(msgspec.Struct):
    """One row of what the native program writes; error is set where it could not be measured."""

    scenario: str
    family: str
    quantity: str
    unit: str
    bytes: float
    repetitions: int = 0
    median: float = 0.0
    p10: float = 0.0
    p90: float = 0.0
    values: list[float] = []
    error: str = ""


class Run(msgspec.Struct):
    """The file that the native program writes."""

    benchmark: str
    complete: bool
    simulated: bool
    device: str
    driver_version: int
    settings: dict[str, Any] | None
    machine: dict[str, Any]
    date: str
    repetitions: int
    scenarios: list[Scenario]


class Spread(msgspec.Struct):
    median: float
    p10: float
    p90: float
    repetitions: int


class Comparison(msgspec.Struct):
    scenario: str
    family: str
    quantity: str
    unit: str
    bytes: int
    measured: Spread
    read: float | None  # the same scenario in the run that the profile was read from
    predicted: float
    error_percent: float
    goal_percent: float
    met: bool
    reason: str


class Origin(msgspec.Struct):
    device: str
    driver_version: int
    date: str
    machine: dict[str, Any]


class Report(msgspec.Struct):
    """The result file. error_percent is (predicted - measured) / measured."""

    benchmark: str
    measured_on: Origin
    read_on: Origin | None
    simulated_on: Origin
    settings: dict[str, Any] | None
    scenarios: list[Comparison]
    not_compared: dict[str, str]


def explain(row: Scenario, read: float | None, predicted: float, goal: float) -> str:
    if row.scenario in REASONS:
        return REASONS[row.scenario]
    if read and abs(predicted - read) / read * 100 <= goal:
        return f"the host's part: {show_time(read)} on the host that the profile was read on"
    return "not explained yet"


def compare(measured: Scenario, predicted: Scenario, read: Scenario | None) -> Comparison:
    read_median = read.median if read is not None and not read.error else None
    goal = GOAL_PERCENT.get(measured.family, GOAL_PERCENT_ELSE)
    error = (predicted.median - measured.median) / measured.median * 100
    met = abs(error) <= goal
    return Comparison(
        scenario=measured.scenario,
        family=measured.family,
        quantity=measured.quantity,
        unit=measured.unit,
        bytes=int(measured.bytes),
        measured=Spread(measured.median, measured.p10, measured.p90, measured.repetitions),
        read=read_median,
        predicted=predicted.median,
        error_percent=round(error, 2),
        goal_percent=goal,
        met=met,
        reason="" if met else explain(measured, read_median, predicted.median, goal),
    )


def origin(run: Run) -> Origin:
    """Kernel and driver by their versions: the rest of their names says who built them."""
    facts = dict(run.machine)
    for key in ("kernel", "nvidia_driver"):
        if found := re.search(r"\d+\.\d+(\.\d+)?", str(facts.get(key) or "")):
            facts[key] = found.group()
    return Origin(run.device, run.driver_version, run.date, facts)


def build_report(measured: Run, simulated: Run, read: Run | None) -> Report:
    readings = {row.scenario: row for row in read.scenarios} if read else {}
    rows: list[Comparison] = []
    left_out: dict[str, str] = {}
    predictions = {row.scenario: row for row in simulated.scenarios}
    for row in measured.scenarios:
        prediction = predictions.pop(row.scenario, None)
        if row.error:
            left_out[row.scenario] = f"not measured: {row.error}"
        elif prediction is None:
            left_out[row.scenario] = "not in the simulated run"
        elif prediction.error:
            left_out[row.scenario] = f"not simulated: {prediction.error}"
        elif row.median <= 0:
            left_out[row.scenario] = "measured as zero"
        else:
            rows.append(compare(row, prediction, readings.get(row.scenario)))
    left_out.update(dict.fromkeys(predictions, "not in the measured run"))
    facts = msgspec.to_builtins(machine.collect())
    return Report(
        benchmark="fidelity",
        measured_on=origin(measured),
        read_on=origin(read) if read else None,
        simulated_on=Origin(simulated.device, simulated.driver_version, simulated.date, {**facts}),
        settings=simulated.settings,
        scenarios=rows,
        not_compared=left_out,
    )


def show_time(microseconds: float) -> str:
    if microseconds >= 1000:
        return f"{microseconds / 1000:,.3f} ms"
    return f"{microseconds:.3g} us" if microseconds < 100 else f"{microseconds:.1f} us"


def markdown(report: Report) -> str:
    met = sum(row.met for row in report.scenarios)
    measured = report.measured_on
    profile = (report.settings or {}).get("profile", "")
    driver = measured.machine.get("nvidia_driver") or "driver not named"
    lines = [
        f"Measured on {measured.device} ({driver}, {measured.date[:10]}), predicted by the "
        f"simulated GPU (profile {profile}). Goal met in {met} of {len(report.scenarios)} "
        f"scenarios: copies within {GOAL_PERCENT['copy']:.0f} %, everything else within "
        f"{GOAL_PERCENT_ELSE:.0f} %.",
        "",
        "| scenario | what | measured (p10 to p90) | earlier run | predicted | error | goal | met "
        "| reason |",
        "|---|---|---:|---:|---:|---:|---:|---|---|",
    ]
    lines += [
        f"| {row.scenario} | {row.quantity} | {show_time(row.measured.median)} "
        f"({show_time(row.measured.p10)} to {show_time(row.measured.p90)}) "
        f"| {show_time(row.read) if row.read else ''} "
        f"| {show_time(row.predicted)} | {row.error_percent:+.1f} % | {row.goal_percent:.0f} % "
        f"| {'yes' if row.met else 'no'} | {row.reason} |"
        for row in report.scenarios
    ]
    if report.not_compared:
        lines += ["", "Not compared:", ""]
        lines += [f"- {name}: {why}" for name, why in report.not_compared.items()]
    return "\n".join(lines)


def read_run(path: Path, simulated: bool) -> Run:
    try:
        run = msgspec.json.decode(path.read_bytes(), type=Run)
    except (OSError, msgspec.MsgspecError) as error:
        sys.exit(f"{path} is not a result of the fidelity program: {error}")
    if run.simulated != simulated:
        kind = "a simulated run" if run.simulated else "a run on a real card"
        sys.exit(f"{path} is {kind}; --measured takes the file of a run with --driver cuda")
    if not run.complete:
        print(f"{path} is from a run that did not finish", file=sys.stderr)
    return run


def simulate(options: Namespace) -> Run:
    """Runs the same program on the simulated GPU; status 1 means a failed scenario, in the file."""
    programs.require_files(options.binary, options.sim_library, options.kernels)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "simulated.json"
        command = [options.binary, "--driver", "sim", "--sim-library", options.sim_library]
        command += ["--kernels", options.kernels, "--settings", options.settings, "--json", path]
        programs.run([str(part) for part in command], accepted=(0, 1))
        return read_run(path, simulated=True)


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument(
        "--measured",
        type=Path,
        required=True,
        help="JSON of `fidelity --driver cuda --json FILE` on a real card",
    )
    parser.add_argument(
        "--read",
        type=Path,
        help="JSON of the earlier run that the profile's figures come from, shown beside",
    )
    parser.add_argument(
        "--settings",
        default="profile=h200,clock=virtual,checker=off,data=off",
        help="settings of the simulated GPU (default: %(default)s)",
    )
    programs.add_arguments(parser, "fidelity", "fidelity_h200.json")
    return parser.parse_args()


def main() -> int:
    options = parse()
    measured = read_run(options.measured, simulated=False)
    read = read_run(options.read, simulated=False) if options.read else None
    report = build_report(measured, simulate(options), read)
    programs.publish(report, markdown(report), options.output)
    return 1 if report.not_compared else 0


if __name__ == "__main__":
    sys.exit(main())
