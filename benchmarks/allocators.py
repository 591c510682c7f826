"""Puts what run_on_gpu.sh measured into one result file, judges it and prints it as a table."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import machine
import msgspec
import programs

DEFAULT_OUTPUT = programs.RESULTS / "allocators_h200.json"


class Row(msgspec.Struct):
    """One allocator under one workload. No values: the outcome or the error says why."""

    workload: str
    allocator: str
    unit: str
    median: float | None = None
    p10: float | None = None
    p90: float | None = None
    values: list[float] = []
    details: dict[str, float] = {}
    outcome: str = ""
    error: str = ""


class NativeRun(msgspec.Struct):
    """The file of a native program."""

    complete: bool
    simulated: bool
    device: str
    driver_version: int
    settings: dict[str, Any] | None
    machine: dict[str, Any]
    date: str
    rows: list[Row]


class PythonRun(msgspec.Struct):
    """The file of python_pairs.py."""

    machine: machine.Machine
    packages: dict[str, str]
    size: int
    pairs: int
    rows: list[Row]


class Goal(msgspec.Struct, frozen=True):
    """What our allocator shall reach: a figure, the first place, or both."""

    workload: str
    words: str
    most: float | None = None
    first: bool = False
    allocator: str = "vramkit"
    kept: str = ""
    """An outcome that must be there, beside the figure."""


class Verdict(msgspec.Struct):
    """One goal: what we have, the best of the others, and whether that is enough."""

    workload: str
    words: str
    allocator: str
    unit: str
    goal: float | None
    ours: float | None
    p10: float | None
    p90: float | None
    best_peer: str
    peer: float | None
    met: bool
    place: str
    """"won", "tied" or "lost" against the best of the others; empty: no other was measured."""
    note: str


class Report(msgspec.Struct):
    benchmark: str
    simulated: bool
    device: str
    driver_version: int
    settings: dict[str, Any] | None
    machine: dict[str, Any]
    packages: dict[str, str]
    date: str
    complete: bool
    missing: list[str]
    verdicts: list[Verdict]
    rows: list[Row]


# Not allocators: what the loops cost by themselves.
BASELINES = {"empty_loop", "empty_call"}
# Two figures this close are one: neither allocator is ahead.
TIE = 0.01
OUTLASTED = "the kernel outlasted the calls"
FAIR_OUTCOMES = {"", "served", OUTLASTED}
# Card memory above the cap that is not the allocator's: the driver's own tables.
SLACK = 1.01

PAIR = "free + malloc pair"
GOALS = [
    Goal("pair/small/1", f"{PAIR}, 256 B to 1 MiB, 1 thread, our stream", 60),
    Goal("pair/small/1", "... raw handle", 100, allocator="vramkit_raw"),
    Goal("pair/small/4", "... 4 threads", first=True),
    Goal("pair/small/8", "... 8 threads", first=True),
    Goal("pair/small/16", "... 16 threads", 120),
    Goal("pair/small/16", "... 16 threads, raw handles", first=True, allocator="vramkit_raw"),
    Goal("pair/large/1", f"{PAIR}, 4 KiB to 64 MiB, 1 thread", 200),
    Goal("pair/large/4", "... 4 threads", first=True),
    Goal("pair/large/8", "... 8 threads", first=True),
    Goal("pair/large/16", "... 16 threads", 1000),
    Goal("producer_consumer/1", "malloc in one thread, free in another", 300),
    Goal("producer_consumer/8", "... eight such couples at once", first=True),
    Goal("holes", "1 KiB pair with 65,536 free holes", 150),
    Goal("random_allocations", "RMM's RANDOM_ALLOCATIONS, 10,000 of up to 1 MiB", first=True),
    Goal("multi_stream/1/cold", "RMM's MULTI_STREAM, 1 stream, cold", first=True),
    Goal("multi_stream/1/warm", "... 1 stream, warm", first=True),
    Goal("multi_stream/2/cold", "... 2 streams, cold", first=True),
    Goal("multi_stream/2/warm", "... 2 streams, warm", first=True),
    Goal("multi_stream/4/cold", "... 4 streams, cold", first=True),
    Goal("multi_stream/4/warm", "... 4 streams, warm", first=True),
    Goal(
        "beside_kernel/allocate",
        "malloc beside a kernel of 1 s, p99.9",
        1000,
        kept=OUTLASTED,
    ),
    Goal(
        "beside_kernel/free",
        "free beside it, p99.9",
        1000,
        kept=OUTLASTED,
    ),
    Goal(
        "beside_kernel/growth",
        "growth by 1 MiB to 1 GiB beside it, p99.9",
        1000,
        kept=OUTLASTED,
    ),
    Goal(
        "fragmentation", "full card, every second block freed, 90 % of it asked", 80, kept="served"
    ),
    Goal("fragmentation/tidied", "... idle memory given back before", 5, kept="served"),
    Goal("burst", "held above the state before a burst", 64),
    Goal("statistics", "statistics on against off", 5),
    Goal("python/raw", "from Python, malloc + free", 200),
    Goal("python/raw", "... foreign stream", first=True, allocator="vramkit_raw"),
    Goal("python/object", "from Python, Buffer made and released", 300),
]


def load(options: Namespace) -> Report:
    """Whatever of the three files is there; ours must be."""
    ours = msgspec.json.decode((options.folder / "allocators.json").read_bytes(), type=NativeRun)
    facts = ours.machine
    rows = list(ours.rows)
    packages: dict[str, str] = {}
    missing = [] if ours.complete else ["our native run did not end"]
    rmm_path = options.folder / "rmm.json"
    if rmm_path.is_file():
        rmm = msgspec.json.decode(rmm_path.read_bytes(), type=NativeRun)
        if (rmm.device, rmm.simulated) != (ours.device, ours.simulated):
            sys.exit(f"the native runs are of two cards: {ours.device} and {rmm.device}")
        rows += rmm.rows
        if not rmm.complete:
            missing.append("RMM's native run did not end")
    else:
        missing.append("RMM's native run")
    python_path = options.folder / "python.json"
    if python_path.is_file():
        python = msgspec.json.decode(python_path.read_bytes(), type=PythonRun)
        rows += python.rows
        packages = python.packages
        facts = msgspec.to_builtins(python.machine) | {"compiler": facts["compiler"]}
        missing += [
            f"{name}: {words}" for name, words in packages.items() if not words[:1].isdigit()
        ]
    else:
        missing.append("the run from Python")
    report = Report(
        benchmark="allocators",
        simulated=ours.simulated,
        device=ours.device,
        driver_version=ours.driver_version,
        settings=ours.settings,
        machine=facts,
        packages=packages,
        date=ours.date,
        complete=not missing,
        missing=missing,
        verdicts=[],
        rows=rows,
    )
    report.verdicts = [judge(goal, rows) for goal in GOALS]
    return report


def beyond_cap(row: Row) -> bool:
    return row.details.get("most_card_bytes", 0) > SLACK * row.details.get("cap_bytes", 0)


def fair(row: Row) -> bool:
    """Did what was asked: neither waited for the kernel nor took more than it was allowed."""
    return row.median is not None and not beyond_cap(row) and row.outcome in FAIR_OUTCOMES


def judge(goal: Goal, rows: list[Row]) -> Verdict:
    same = [row for row in rows if row.workload == goal.workload]
    ours = next((row for row in same if row.allocator == goal.allocator), None)
    peers = [
        row
        for row in same
        if fair(row) and not row.allocator.startswith("vramkit") and row.allocator not in BASELINES
    ]
    best = min(peers, key=lambda row: row.median or 0.0, default=None)
    verdict = Verdict(
        workload=goal.workload,
        words=goal.words,
        allocator=goal.allocator,
        unit=ours.unit if ours else "",
        goal=goal.most,
        ours=ours.median if ours else None,
        p10=ours.p10 if ours else None,
        p90=ours.p90 if ours else None,
        best_peer=best.allocator if best else "",
        peer=best.median if best else None,
        met=False,
        place="",
        note="not measured" if ours is None else ours.error or ours.outcome,
    )
    if verdict.ours is None:
        verdict.place = "lost" if best else ""
        return verdict
    if verdict.peer is not None:
        tied = abs(verdict.ours - verdict.peer) <= TIE * verdict.peer
        verdict.place = "tied" if tied else "won" if verdict.ours < verdict.peer else "lost"
    elif any(row.allocator != goal.allocator and row.outcome for row in same):
        verdict.place = "won"  # others were asked and could not do it
    verdict.met = (
        (goal.most is None or verdict.ours <= goal.most)
        and (not goal.first or verdict.place != "lost")
        and goal.kept in verdict.note
    )
    if ours is not None and "cap_bytes" in ours.details:
        verdict.note += ", beyond the cap" if beyond_cap(ours) else ", within the cap"
        verdict.met = verdict.met and not beyond_cap(ours)
    return verdict


def figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 100 or unit == "MiB" else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def spread(row: Row | Verdict) -> str:
    if row.p10 is None or row.p90 is None:
        return ""
    return f" ({figure(row.p10, '').strip()} to {figure(row.p90, '').strip()})"


def markdown(report: Report) -> str:
    met = sum(verdict.met for verdict in report.verdicts)
    lines = [
        f"{report.device}, {report.machine['cpu']}, {report.date[:10]}; medians with p10 to p90. "
        f"{met} of {len(report.verdicts)} goals met.",
        "",
        "| workload | ours | goal | met | best of the others | against it | note |",
        "|---|---:|---:|---|---:|---|---|",
    ]
    for verdict in report.verdicts:
        goal = "first" if verdict.goal is None else f"<= {figure(verdict.goal, verdict.unit)}"
        peer = f"{verdict.best_peer} {figure(verdict.peer, verdict.unit)}".strip()
        lines.append(
            f"| {verdict.words} | {figure(verdict.ours, verdict.unit)}{spread(verdict)} | {goal} "
            f"| {'yes' if verdict.met else 'no'} | {peer} "
            f"| {verdict.place} | {verdict.note} |"
        )
    allocators = list(dict.fromkeys(row.allocator for row in report.rows))
    lines += ["", f"| all rows | {' | '.join(allocators)} |", "|---|" + "---:|" * len(allocators)]
    for workload in dict.fromkeys(row.workload for row in report.rows):
        cells = []
        for allocator in allocators:
            row = next(
                (r for r in report.rows if (r.workload, r.allocator) == (workload, allocator)), None
            )
            if row is None:
                cells.append("")
            elif row.median is None:
                cells.append(row.outcome or "failed")
            else:
                flaw = ", beyond the cap" if beyond_cap(row) else "" if fair(row) else ", waited"
                cells.append(figure(row.median, row.unit) + flaw)
        lines.append(f"| {workload} | {' | '.join(cells)} |")
    if report.missing:
        lines += ["", "Missing: " + "; ".join(report.missing) + "."]
    return "\n".join(lines)


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what run_on_gpu.sh was given")
    parser.add_argument(
        "--output",
        type=Path,
        default=DEFAULT_OUTPUT,
        help="result file (default: %(default)s)",
    )
    return parser.parse_args()


def main() -> int:
    options = parse()
    programs.require_files(options.folder / "allocators.json")
    report = load(options)
    if report.simulated and options.output == DEFAULT_OUTPUT:
        sys.exit("these are figures of the simulated GPU; give them a file of their own: --output")
    programs.publish(report, markdown(report), options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
