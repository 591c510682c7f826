"""A sweep of 10,000 plans on one worker and on two: is it 1.9 times as fast?

    python benchmarks/plan_sweep.py --json benchmarks/results/plan_sweep_sim.json
    python benchmarks/plan_sweep.py --ray --json benchmarks/results/plan_sweep_ray_sim.json
    python benchmarks/plan_sweep.py publish    # the table of docs/plan.md

Takes about five minutes on two cores. The machine should be idle: the load before each sweep is in
the result. `--ray` does the same on a Ray of its own with one CPU and with two.
"""

import argparse
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import programs
from machine import Machine, collect

from vramkit.lab.collect import versions
from vramkit.sweep import Place
from vramkit.sweep.local import LocalPlace
from vramkit.weights import Group
from vramkit.weights.planner.sweep import Grid, Source, plan_sweep
from vramkit.weights.planner.sweep_result import PlanSweep

RESULTS = {
    "processes of the machine": programs.RESULTS / "plan_sweep_sim.json",
    "Ray, its head on the same cores": programs.RESULTS / "plan_sweep_ray_sim.json",
}
PAGE = programs.ROOT / "docs" / "plan.md"
GOAL = 1.9
IDLE = 0.5
"""More load than this, beside the sweep, and the figure is of the neighbours too."""
PROFILES = ("h200", "pcie4-24gb")
POLICIES = ("auto", "history", "block_shallow", "first_step")
LAYERS = (32, 48, 64, 80, 96)


class Sweep(msgspec.Struct):
    workers: int
    seconds: float
    """From the start of the first process to the last plan."""
    own_cpu_seconds: float
    """Of the process that hands out the plans."""
    workers_cpu_seconds: float | None
    """Of the workers, starts included; on Ray they are nobody's children."""
    load_before: float


class Report(msgspec.Struct):
    benchmark: str
    simulated: bool
    place: str
    machine: Machine
    versions: dict[str, str]
    plans: int
    planned: int
    identical: bool
    """All sweeps have the same rows, bit for bit."""
    idle: bool
    sweeps: list[Sweep]
    speedup: float
    goal: float = GOAL


def grid(plans: int) -> Grid:
    """Models of equal layers, each with each; budgets from a GB in steps of as many plans."""
    models = tuple(
        Source(
            f"{layers} layers",
            tuple(
                Group(layer, name, nbytes)
                for layer in range(layers)
                for name, nbytes in (("attn", 100_000_000), ("ffn", 150_000_000))
            ),
            (0.002, 0.003) * layers,
        )
        for layers in LAYERS
    )
    steps = -(-plans // (len(models) * len(PROFILES) * len(POLICIES)))
    budgets = tuple(f"{1000 + 60 * step}MB" for step in range(steps))
    return Grid(models, PROFILES, budgets, POLICIES)


@contextmanager
def place(workers: int, on_ray: bool) -> Iterator[Place]:
    if not on_ray:
        yield LocalPlace(workers)
        return
    import ray

    from vramkit.integrations.ray.places import Cpus

    # Never a cluster that is there already.
    ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False)
    try:
        yield Cpus()
    finally:
        ray.shutdown()


def cpu_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def measure(chosen: Grid, workers: int, on_ray: bool) -> tuple[Sweep, PlanSweep]:
    with place(workers, on_ray) as where:
        load = os.getloadavg()[0]
        own, children = (
            cpu_seconds(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        began = time.perf_counter()
        found = plan_sweep(chosen, where)
        seconds = time.perf_counter() - began
        used = cpu_seconds(resource.RUSAGE_SELF) - own
        theirs = None if on_ray else cpu_seconds(resource.RUSAGE_CHILDREN) - children
    return Sweep(workers, seconds, used, theirs, load), found


def medians(sweeps: list[Sweep]) -> dict[int, float]:
    """Seconds, by the number of workers."""
    return {
        workers: statistics.median(each.seconds for each in sweeps if each.workers == workers)
        for workers in (1, 2)
    }


def speedup_words(report: Report) -> str:
    met = "met" if report.speedup >= report.goal else "missed"
    said = f"{report.speedup:.2f} times as fast (goal {report.goal}: {met})"
    if not report.idle:
        said += f"; the load was {report.sweeps[0].load_before:.1f} before it began"
    return said


def read() -> dict[str, Report]:
    return {
        name: msgspec.json.decode(path.read_bytes(), type=Report) for name, path in RESULTS.items()
    }


def page(reports: dict[str, Report]) -> str:
    """The part of docs/plan.md between its marks."""
    lines = ["| | one worker | two workers | |", "|---|---:|---:|---|"]
    for name, report in reports.items():
        one, two = medians(report.sweeps).values()
        lines.append(f"| {name} | {one:.1f} s | {two:.1f} s | {speedup_words(report)} |")
    made = {(report.plans, report.planned) for report in reports.values()}
    ran = {
        f"{report.machine.cores} cores ({report.machine.cpu}), {report.machine.date[:10]}"
        for report in reports.values()
    }
    rounds = {len(report.sweeps) // 2 for report in reports.values()}
    if len(made) != 1 or len(ran) != 1 or len(rounds) != 1:
        sys.exit(f"the results are not of the same sweep: {made}, {ran}, {rounds} rounds")
    ((plans, planned),) = made
    same = all(report.identical for report in reports.values())
    lines += [
        "",
        f"{plans:,} plans, of which {planned:,} are possible; medians of {rounds.pop()}; "
        f"{ran.pop()}. All tables of a place are {'the same' if same else 'NOT the same'}, "
        "bit for bit.",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("measure", "publish"), default="measure")
    parser.add_argument("--plans", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.what == "publish":
        programs.publish_page(PAGE, "plan_sweep", page(read()))
        return 0
    chosen = grid(options.plans)
    sweeps, documents, last = [], set(), None
    for _ in range(options.rounds):
        for workers in (1, 2):
            sweep, last = measure(chosen, workers, options.ray)
            sweeps.append(sweep)
            documents.add(msgspec.json.encode(last))
            print(
                f"{workers}: {sweep.seconds:.1f} s, load {sweep.load_before:.1f}", file=sys.stderr
            )
    seconds = medians(sweeps)
    report = Report(
        benchmark="plan_sweep",
        simulated=True,
        place="ray" if options.ray else "local",
        machine=collect(),
        versions=versions(),
        plans=len(last.rows),
        planned=last.planned,
        identical=len(documents) == 1,
        # One's own sweep before is in the load as well.
        idle=sweeps[0].load_before <= IDLE,
        sweeps=sweeps,
        speedup=seconds[1] / seconds[2],
    )
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    print(
        f"{report.plans:,} plans ({report.planned:,} possible): {seconds[1]:.1f} s on one worker, "
        f"{seconds[2]:.1f} s on two: {speedup_words(report)}"
    )
    return 0 if report.identical else 1


if __name__ == "__main__":
    sys.exit(main())
