"""Writes the figures of the lab's pages from its results: a card's where there is one, else the
simulated ones, and says which.

    python benchmarks/lab_figures.py            # between the marks of each page
    python benchmarks/lab_figures.py --check    # status 1 where a page is not current
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import lab_advice
import lab_replay
import msgspec
import programs

from vramkit.lab.allocators.claims import CLAIMS as ALLOCATOR_CLAIMS
from vramkit.lab.allocators.experiment import ENGINES
from vramkit.lab.allocators.judges import ALL as WORKLOADS
from vramkit.lab.claims import VERDICTS, Claim
from vramkit.lab.fragmentation.changes import change, change_text, explanation
from vramkit.lab.fragmentation.claims import CLAIMS as FRAGMENTATION_CLAIMS
from vramkit.lab.fragmentation.experiment import EXTREMES, NEARLY_FULL
from vramkit.lab.fragmentation.measuring import ALONE
from vramkit.lab.fragmentation.programs import ARMS, PHASES
from vramkit.lab.ranking import measured, medians, percent
from vramkit.lab.result import Report, load
from vramkit.lab.samples import Spread
from vramkit.lab.subjects import SUBJECTS
from vramkit.report.units import count_text, time_text

DOCS = programs.ROOT / "docs"
END = "<!-- End of what is written -->"
ALLOCATORS = ("lab_allocators_cupy", "lab_allocators_python", "lab_allocators_native")
"""Of a card, the nearest to the study first: that one judges its claims."""
FRAGMENTATION = "lab_fragmentation"
MILLION = "lab_fragmentation_million"
UNSAID = VERDICTS[-1]
NO_CARD = "No card has been measured yet: `benchmarks/{}.py` does it."

Line = list[str]


def begin(name: str) -> str:
    return f"<!-- Written by benchmarks/lab_figures.py: {name} -->"


# Results


def on_card(folder: Path, name: str) -> Report | None:
    path = folder / f"{name}_h200.json"
    if not path.exists():
        return None
    report = load(path)
    if report.stopped or report.simulated:
        why = report.stopped or "it is simulated"
        raise SystemExit(f"{path} is not what pages show: {why}")
    return report


def simulated(folder: Path, name: str) -> Report:
    return load(folder / f"{name}_sim.json")


def allocators(folder: Path) -> list[Report]:
    """Of each engine that a card has measured."""
    found = [report for name in ALLOCATORS if (report := on_card(folder, name))]
    return found or [simulated(folder, "lab_allocators")]


def fragmentation(folder: Path) -> Report:
    return on_card(folder, FRAGMENTATION) or simulated(folder, FRAGMENTATION)


def where(report: Report) -> str:
    runs = f" in {len(report.continued) + 1} runs" if report.continued else ""
    how = f"{report.repetitions} repetitions{runs}, vramkit {report.versions['vramkit']}"
    date = report.date[:10]
    if report.simulated:
        profile = f"profile `{report.simulated}`"
        return f"**Simulated** ({profile}, {how}, {date}); not measured on a card yet."
    return f"**{report.card}** ({date}, {how}; {report.machine.cpu})."


def markdown(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)


# Tables


def allocator_table(report: Report) -> str:
    """Of each engine that the report has: times, allocation's share, and memory."""
    tables = []
    for engine in engines(report):
        by_workload = {
            workload.name: medians(measured(report, workload.name, engine, "time"))
            for workload in WORKLOADS
        }
        times = {name: found for name, found in by_workload.items() if found}
        names = [each for each in SUBJECTS if any(each in found for found in times.values())]
        lines: list[Line] = []
        for number, (workload, found) in enumerate(times.items()):
            what = "" if number else f"time, ms{' (simulated)' if report.simulated else ''}"
            cells = [f"{found[each]:.3g}" if each in found else "" for each in names]
            lines.append([f"`{workload}`", what, *cells])
        shares = [_middle(allocation_shares(report, each, engine)) for each in names]
        held = [_held(report, engine, list(times), each) for each in names]
        lines.append(["allocation's share, middle of the workloads", "", *shares])
        lines.append(["peak held over peak in use, middle", "", *held])
        tables.append(markdown([f"case, `{engine}`", "", *names], lines))
    return "\n\n".join(tables)


def engines(report: Report) -> list[str]:
    """That worked on the tables; the nearest to real ones last."""
    arms = {row.arm for row in report.rows if row.values}
    return [engine for engine in ENGINES if engine in arms]


def allocation_shares(report: Report, subject: str, engine: str) -> list[float]:
    """Of each workload's time."""
    found = []
    for workload in WORKLOADS:
        allocation, time = (
            medians(measured(report, workload.name, engine, quantity))
            for quantity in ("allocation", "time")
        )
        if subject in allocation and time.get(subject):
            found.append(allocation[subject] / time[subject])
    return found


def _middle(shares: list[float]) -> str:
    return percent(median(shares)) if shares else ""


def _held(report: Report, engine: str, workloads: list[str], subject: str) -> str:
    if SUBJECTS[subject].needs_size:
        return "taken ahead"
    over = (medians(measured(report, each, engine, "over_in_use")) for each in workloads)
    known = [found[subject] for found in over if subject in found]
    return f"{median(known):.2f}" if known else ""


def fragmentation_table(report: Report, million: Report | None) -> str:
    names = [
        each for each in SUBJECTS if any(row.values and row.subject == each for row in report.rows)
    ]

    def line(head: str, what: str, cell: Callable[[str], str]) -> Line:
        return [head, what, *(cell(each) for each in names)]

    def middle(
        workload: str, arm: str, quantity: str, shown: Callable[[float], str]
    ) -> Callable[[str], str]:
        found = measured(report, workload, arm, quantity)
        return lambda name: shown(Spread.of(found[name]).median) if name in found else ""

    def changed(source: Report, workload: str) -> Callable[[str], str]:
        def cell(name: str) -> str:
            difference = change(source, name, workload, "", "early", "late")
            row = source.row(workload, name)
            if difference is None:
                return row.outcome if row is not None and not row.values else ""
            return change_text(difference)

        return cell

    lines = []
    for arm in ARMS:
        for phase in PHASES:
            head = f"`{arm}`" if phase == PHASES[0] else ""
            times = middle(ALONE, arm, f"phase_{phase}", lambda ns: time_text(ns * 1e-9))
            lines.append(line(head, f"phase {phase}", times))
    lines.append(line("explanation", "", lambda name: explanation(report, name, ALONE)))
    for workload in EXTREMES:
        lines.append(
            line(f"`{workload}`{_count(report, workload)}", "late", changed(report, workload))
        )
    if million is not None:
        head = f"`small_blocks`{_count(million, 'small_blocks')}"
        lines.append(line(head, "late", changed(million, "small_blocks")))
    for what, quantity in (("largest block / free", "one_piece"), ("served", "served")):
        head = f"`{NEARLY_FULL}`" if quantity == "one_piece" else ""
        lines.append(line(head, what, middle(NEARLY_FULL, "", quantity, percent)))
    return markdown(["`alone`", "", *names], lines)


def _count(report: Report, workload: str) -> str:
    counts = medians(measured(report, workload, "", "blocks")).values()
    return f", {max(counts):,.0f}" if counts else ""


def claim_lines(report: Report, claims: Sequence[Claim]) -> list[Line]:
    """Claim, verdict, figures and rule."""
    found = []
    for claim in claims:
        judged = claim.judged(report)
        figures = judged.figures.removeprefix("simulated: ")
        found.append([claim.text, judged.verdict, figures, judged.rule])
    return found


def counted(lines: Sequence[Line]) -> str:
    """How many claims have which verdict."""
    verdicts = [verdict for _, verdict, *_ in lines]
    parts = [f"{count} {each}" for each in VERDICTS if (count := verdicts.count(each))]
    return f"Of {count_text(len(lines), 'claim')}: {', '.join(parts)}."


def claims_section(report: Report, claims: Sequence[Claim]) -> str:
    lines = claim_lines(report, claims)
    if report.simulated is None:
        return f"{counted(lines)}\n\n{markdown(['claim', 'verdict', 'figures', 'rule'], lines)}"
    shown = [
        [text, figures if verdict == UNSAID else f"**{verdict}**: {figures}", rule]
        for text, verdict, figures, rule in lines
    ]
    said = sum(verdict != UNSAID for _, verdict, *_ in lines)
    intro = (
        f"{said or 'None'} of the {len(lines)} can be judged on the simulated GPU, whose times "
        "have no allocator's own work in them.\nOn a card the report has a verdict for each: "
        "confirmed, in part, not confirmed, or cannot be said."
    )
    return f"{intro}\n\n{markdown(['claim', 'on the simulated GPU', 'rule'], shown)}"


def verdicts_section(report: Report, claims: Sequence[Claim]) -> str:
    """For the page that has them all: only what can be said."""
    lines = claim_lines(report, claims)
    said = [line[:3] for line in lines if line[1] != UNSAID]
    text = where(report)
    if said:
        text += f"\n\n{markdown(['claim', 'verdict', 'figures'], said)}"
    rest = len(lines) - len(said)
    if rest:
        waits = "wait for a card" if report.simulated else "cannot be said from it"
        text += f"\n\nThe other {rest} {waits}." if said else f"\n\nAll {rest} {waits}."
    return text


def overview(allocators: Report, fragmentation: Report, sharing: Path) -> str:
    """Which claims were asked on what. `sharing`: the result of real programs on a card."""
    on = "not on a card yet" if allocators.simulated else f"an {allocators.card}"
    pieces = "" if fragmentation.simulated else "; with all allocators"
    programs_on = "[programs on an H200](sharing.md)" if sharing.exists() else "not on a card yet"
    return markdown(
        ["study", "the claims, one by one", "measured on"],
        [
            [
                "allocators: pool, async or arena",
                "[below](#when-pool-async-and-arena-allocators-win)",
                on,
            ],
            [
                "fragmentation",
                "[below](#whether-fragmentation-slows-allocation-down)",
                f"an H200, natively, with RMM{pieces}",
            ],
            [
                "weight streaming",
                "[the lab's page](lab-weights.md)",
                "the simulated GPU, exactly; on an H200 [the bound](offload.md#what-it-costs)",
            ],
            [
                "sharing",
                "[the lab's page](lab-sharing.md)",
                f"the simulated GPU, exactly; {programs_on}",
            ],
        ],
    )


# Pages


def sections(folder: Path) -> dict[tuple[str, str], str]:
    """By page and name of the section."""
    by_engine, pieces = allocators(folder), fragmentation(folder)
    nearest = by_engine[0]
    tables = "\n\n".join(f"{where(each)}\n\n{allocator_table(each)}" for each in by_engine)
    table = fragmentation_table(pieces, on_card(folder, MILLION))
    return {
        ("lab-allocators.md", "figures"): tables,
        ("lab-allocators.md", "claims"): claims_section(nearest, ALLOCATOR_CLAIMS),
        ("lab-fragmentation.md", "figures"): f"{where(pieces)}\n\n{table}",
        ("lab-fragmentation.md", "claims"): claims_section(pieces, FRAGMENTATION_CLAIMS),
        ("claims.md", "overview"): overview(nearest, pieces, folder / "sharing_h200.json"),
        ("claims.md", "fragmentation"): verdicts_section(pieces, FRAGMENTATION_CLAIMS),
        ("claims.md", "allocators"): verdicts_section(nearest, ALLOCATOR_CLAIMS),
        ("replay.md", "real runs"): _goals(
            folder, "lab_replay", lab_replay.Result, lab_replay.table
        ),
        ("advise.md", "followed"): _goals(
            folder, "lab_advice", lab_advice.Result, lab_advice.table
        ),
    }


def _goals(folder: Path, name: str, kind: type, table: Callable[..., str]) -> str:
    path = folder / f"{name}_h200.json"
    if not path.exists():
        return NO_CARD.format(name)
    result = msgspec.json.decode(path.read_bytes(), type=kind)
    made = result.machine
    return f"{made.gpu or 'Simulated'}, {made.date[:10]}; {made.cpu}.\n\n{table(result)}"


def written(page: str, name: str, text: str) -> str:
    """The page with this text between the marks of the section."""
    before, mark, rest = page.partition(begin(name))
    _, end, after = rest.partition(END)
    if not mark or not end:
        sys.exit(f"a page has no lines {begin(name)!r} and {END!r}, between which it belongs")
    return f"{before}{mark}\n\n{text}\n\n{end}{after}"


def pages(folder: Path) -> dict[str, str]:
    """Each page as it should be."""
    found: dict[str, str] = {}
    for (name, section), text in sections(folder).items():
        page = found.get(name) or (DOCS / name).read_text("utf-8")
        found[name] = written(page, section, text)
    return found


def main() -> int:
    parser = ArgumentParser(description=__doc__.partition("\n\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; 1: not current")
    check = parser.parse_args().check
    stale = 0
    for name, page in pages(programs.RESULTS).items():
        path = DOCS / name
        if path.read_text("utf-8") != page:
            stale = 1
            if not check:
                path.write_text(page, "utf-8")
    return stale if check else 0


if __name__ == "__main__":
    sys.exit(main())
