"""The rows of the sharing benchmark, their goals, and the table that the documentation shows."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import programs
from machine import Machine

DOCUMENT = programs.ROOT / "docs" / "sharing.md"
BEGIN = "<!-- Written by benchmarks/sharing.py publish -->"
END = "<!-- End of what is written -->"
NOTHING = "No card has been measured yet: `benchmarks/sharing.py` does it."


class Case(msgspec.Struct, frozen=True):
    """`seconds`: about how long it takes with full programs on a card."""

    text: str
    compared: str
    unit: str
    goal: float | None = None
    at_least: bool = False
    seconds: float = 30.0


CASES = {
    "switch_full": Case(
        "one switch, two programs of 12 GiB, one fits",
        "47 s by faults, 0.75 s by prefetch (a study); 0.47 s one way after the other",
        "s",
        0.33,
        seconds=25,
    ),
    "switch_third": Case("... 20 GiB of card: 4 GiB are missing", "", "s", 0.10, seconds=25),
    "switch_unchanged": Case("... nothing was changed", "", "s", 0.27, seconds=25),
    "alone": Case(
        "one program alone, training", "native; 1.026 in a study", "ratio", 1.005, seconds=60
    ),
    "tenth": Case(
        "sum 10 % over the budget: what a switch moves", "both programs", "part", 0.15, seconds=25
    ),
    "total_short": Case(
        "two of 12 GiB in 20 GiB, quantum 2 s", "one after the other", "ratio", 1.05, seconds=70
    ),
    "side_by_side": Case(
        "two that fit", "native side by side", "ratio", 1.01, seconds=80
    ),
    "mode_swap": Case("two of 3 GiB in 4.5 GiB, one switch: swap", "", "s", seconds=25),
    "mode_prefetch": Case("... prefetch", "", "s", seconds=25),
    "mode_paged": Case("... paged", "", "s", seconds=25),
    "efficiency_long": Case(
        "two of 12 GiB in 20 GiB, quantum 30 s", "one after the other", "efficiency", 0.99,
        at_least=True, seconds=130,
    ),
    "additions": Case(
        "x + y, 4,000 times, 12 GiB", "native; 1.026 in a study", "ratio", 1.005, seconds=75
    ),
    "tenth_half_unchanged": Case(
        "sum 10 % over, half of the memory is never changed", "both programs", "part", 0.15,
        seconds=25,
    ),
}  # fmt: skip


class Row(msgspec.Struct):
    name: str
    value: float | None = None
    met: bool | None = None
    seconds: float = 0.0
    """That measuring it took."""
    details: dict[str, Any] = {}
    error: str = ""

    def take(self, value: float) -> None:
        case = CASES[self.name]
        self.value = value
        if case.goal is not None:
            self.met = value >= case.goal if case.at_least else value <= case.goal


class Report(msgspec.Struct):
    benchmark: str
    simulated: bool
    scale: str
    programs: str
    gpu: str
    machine: Machine
    packages: dict[str, str]
    repetitions: int
    rows: list[Row]

    def row(self, name: str) -> Row | None:
        return next((each for each in self.rows if each.name == name), None)

    def keep(self, row: Row) -> None:
        """In the order of the cases, in the place of an older one."""
        rows = [each for each in self.rows if each.name != row.name] + [row]
        self.rows = sorted(rows, key=lambda each: list(CASES).index(each.name))


def figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "s":
        return f"{value:.3f} s"
    if unit == "ratio":
        return f"{value:.4f}"
    return f"{value * 100:.1f} %"


def beside(row: Row) -> str:
    """What a reader wants to see beside the figure itself."""
    said = []
    details = row.details
    if details.get("first_seconds"):
        first = ", ".join(f"{each:.2f}" for each in details["first_seconds"])
        said.append(f"first ones {first} s")
    later = details.get("later_seconds") or []
    if later and row.name != "tenth":
        said.append(f"{min(later):.3f} to {max(later):.3f} of {len(later)}")
    if details.get("later_moved_out") is not None:
        out, into = (details[f"later_moved_{way}"] / 2**20 for way in ("out", "in"))
        said.append(f"{out:,.0f} MiB out, {into:,.0f} MiB in")
    if details.get("least_possible") is not None:
        said.append(f"the shortfall is {details['least_possible'] * 100:.1f} %")
    if ratios := details.get("ratios"):
        said.append(f"{min(ratios):.4f} to {max(ratios):.4f} of {len(ratios)} pairs of runs")
    if "one_after_the_other_seconds" in details:
        after = details["one_after_the_other_seconds"]
        said.append(
            f"{details['shared_seconds']:.1f} s; {after:.1f} s {details['one_after_the_other']}; "
            f"{details['switches']} switches"
        )
    return "; ".join(said)


def markdown(report: Report) -> str:
    on = f"**simulated** GPU, {report.scale} programs" if report.simulated else report.gpu
    packages = ", ".join(f"{name} {version}" for name, version in report.packages.items())
    machine = report.machine
    lines = [
        f"{on}; {machine.cpu}, {machine.date[:10]}; programs in {report.programs}"
        f"{f' ({packages})' if packages else ''}.",
        "",
        "| case | compared with | goal | measured | | met |",
        "|---|---|---|---|---|---|",
    ]
    for row in report.rows:
        case = CASES[row.name]
        sign = ">=" if case.at_least else "<="
        goal = f"{sign} {figure(case.goal, case.unit)}" if case.goal is not None else ""
        value = figure(row.value, case.unit)
        said = row.error.partition("\n")[0] if row.error else beside(row)
        met = {None: "", True: "yes", False: "no"}[row.met]
        lines.append(f"| {case.text} | {case.compared} | {goal} | {value} | {said} | {met} |")
    return "\n".join(lines)


def written(document: str, table: str) -> str:
    """The document with the table between its marks."""
    before, mark, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        sys.exit(f"{DOCUMENT} has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def read(path: Path) -> Report | None:
    return msgspec.json.decode(path.read_bytes(), type=Report) if path.is_file() else None


def document_table(path: Path) -> str:
    """What the documentation shows: only what was measured on a card."""
    report = read(path)
    return NOTHING if report is None or report.simulated else markdown(report)
