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

import lab_advice
import lab_replay
import msgspec
import programs
from lab_tables import Line, allocator_table, engines, fragmentation_table, goal_table, markdown

from vramkit.lab.allocators import ALLOCATORS as ALLOCATORS_EXPERIMENT
from vramkit.lab.allocators.claims import CLAIMS as ALLOCATOR_CLAIMS
from vramkit.lab.allocators.goals import places as allocator_places
from vramkit.lab.claims import NOT_MEASURED, VERDICTS, Claim, Judged
from vramkit.lab.fragmentation.claims import CLAIMS as FRAGMENTATION_CLAIMS
from vramkit.lab.fragmentation.goals import places as fragmentation_places
from vramkit.lab.goals import RULE, Place
from vramkit.lab.result import Report, load
from vramkit.report.units import count_text

DOCS = programs.ROOT / "docs"
END = "<!-- End of what is written -->"
ALLOCATORS = ("lab_allocators_cupy", "lab_allocators_python", "lab_allocators_native")
"""Of a card, the nearest to the study first: that one judges its claims."""
FRAGMENTATION = "lab_fragmentation"
MILLION = "lab_fragmentation_million"
UNSAID = VERDICTS[-1]
NO_CARD = "No card has been measured yet: `benchmarks/{}.py` does it."


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


def claim_lines(reports: Sequence[Report], claims: Sequence[Claim]) -> list[Line]:
    """Claim, verdict, figures, whose figures, and rule."""
    found = []
    for claim in claims:
        judged, report = judged_by_nearest(reports, claim)
        figures = judged.figures.removeprefix("simulated: ")
        found.append([claim.text, judged.verdict, figures, source(report), judged.rule])
    return found


def judged_by_nearest(reports: Sequence[Report], claim: Claim) -> tuple[Judged, Report | None]:
    """By the first of them that has its figures, whatever these say. Simulated times judge nothing
    beside those of a card."""
    for report in reports:
        if report.simulated and claim.of_times and not reports[0].simulated:
            continue
        judged = claim.judged(report)
        if judged != NOT_MEASURED:
            return judged, report
    return NOT_MEASURED, None


def source(report: Report | None) -> str:
    """Whose figures they are: of which engine, or of the simulated GPU."""
    if report is None:
        return ""
    if report.simulated:
        return "simulated"
    return f"`{engines(report)[-1]}`" if report.experiment == ALLOCATORS_EXPERIMENT.name else ""


def counted(lines: Sequence[Line]) -> str:
    """How many claims have which verdict."""
    verdicts = [verdict for _, verdict, *_ in lines]
    parts = [f"{count} {each}" for each in VERDICTS if (count := verdicts.count(each))]
    return f"Of {count_text(len(lines), 'claim')}: {', '.join(parts)}."


def claims_section(reports: Sequence[Report], claims: Sequence[Claim]) -> str:
    lines = claim_lines(reports, claims)
    if not reports[0].simulated:
        columns = ["claim", "verdict", "figures", "of", "rule"]
        return f"{counted(lines)}\n\n{markdown(columns, lines)}"
    shown = [
        [text, figures if verdict == UNSAID else f"**{verdict}**: {figures}", rule]
        for text, verdict, figures, _, rule in lines
    ]
    said = sum(verdict != UNSAID for _, verdict, *_ in lines)
    intro = (
        f"{said or 'None'} of the {len(lines)} can be judged on the simulated GPU, whose times "
        "have no allocator's own work in them.\nOn a card the report has a verdict for each: "
        "confirmed, in part, not confirmed, or cannot be said."
    )
    return f"{intro}\n\n{markdown(['claim', 'on the simulated GPU', 'rule'], shown)}"


def verdicts_section(reports: Sequence[Report], claims: Sequence[Claim]) -> str:
    """For the page that has them all: only what can be said."""
    lines = claim_lines(reports, claims)
    said = [line[:4] for line in lines if line[1] != UNSAID]
    text = all_where(reports)
    if said:
        columns = ["claim", "verdict", "figures"]
        if not reports[0].simulated:
            columns.append("of")
        said = [line[: len(columns)] for line in said]
        text += f"\n\n{markdown(columns, said)}"
    rest = len(lines) - len(said)
    if rest:
        waits = "wait for a card" if reports[0].simulated else "cannot be said from it"
        text += f"\n\nThe other {rest} {waits}." if said else f"\n\nAll {rest} {waits}."
    return text


def all_where(reports: Sequence[Report]) -> str:
    """Of several, which is which."""
    of_card = [each for each in reports if not each.simulated]
    if len(of_card) < 2:
        return where(reports[0])
    return "\n\n".join(f"{source(each)}: {where(each)}" for each in of_card)


def goals_section(tables: Sequence[tuple[Report, Sequence[Place]]]) -> str:
    parts = [f"{where(report)} {goal_table(report, places)}" for report, places in tables if places]
    return "\n\n".join([RULE, *parts])


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
    nearest, judging = by_engine[0], by_engine
    if not nearest.simulated:
        judging = [*by_engine, simulated(folder, "lab_allocators")]
    tables = "\n\n".join(f"{where(each)}\n\n{allocator_table(each)}" for each in by_engine)
    table = fragmentation_table(pieces, on_card(folder, MILLION))
    return {
        ("lab-allocators.md", "figures"): tables,
        ("lab-allocators.md", "claims"): claims_section(judging, ALLOCATOR_CLAIMS),
        ("lab-allocators.md", "goals"): goals_section(
            [(each, allocator_places(each)) for each in by_engine]
        ),
        ("lab-fragmentation.md", "goals"): goals_section([(pieces, fragmentation_places(pieces))]),
        ("lab-fragmentation.md", "figures"): f"{where(pieces)}\n\n{table}",
        ("lab-fragmentation.md", "claims"): claims_section([pieces], FRAGMENTATION_CLAIMS),
        ("claims.md", "overview"): overview(nearest, pieces, folder / "sharing_h200.json"),
        ("claims.md", "fragmentation"): verdicts_section([pieces], FRAGMENTATION_CLAIMS),
        ("claims.md", "allocators"): verdicts_section(judging, ALLOCATOR_CLAIMS),
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
