"""Writes the README's table of figures from the result files, so that none of them is typed.

python benchmarks/readme_figures.py            # rewrites the table between its marks
python benchmarks/readme_figures.py --check    # status 1 where it is not up to date
"""

import statistics
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

import lab_figures
import lab_tables
import msgspec
import programs
import sharing_report

from vramkit.lab.figures import figure
from vramkit.lab.ranking import percent
from vramkit.lab.result import load
from vramkit.lab.sharing.cases import H200, MODES, SwitchCase
from vramkit.lab.subjects import SUBJECTS

README = programs.ROOT / "README.md"
BEGIN = "<!-- From here on written by benchmarks/readme_figures.py -->"
END = "<!-- Up to here -->"
SHARED = "sharing_h200.json"
LIBRARIES = ("rmm_", "cupy_", "torch")

Line = tuple[str, str, str, str]
"""What was measured, vramkit's figure, the others', where it was measured."""


def result(name: str) -> Any:
    return msgspec.json.decode((programs.RESULTS / name).read_bytes())


def date(report: dict[str, Any]) -> str:
    text: str = report.get("date") or report["machine"]["date"]
    return text[:10]


def medians(report: dict[str, Any], workload: str) -> dict[str, float]:
    """By allocator; those without a figure are left out."""
    return {
        row["allocator"]: row["median"]
        for row in report["rows"]
        if row["workload"] == workload and row["median"] is not None
    }


# The pool


def allocators() -> list[Line]:
    report = result("allocators_h200.json")
    where = f"H200, {date(report)}"
    lines = []
    for threads in (1, 16):
        found = medians(report, f"pair/small/{threads}")
        peers = {name: value for name, value in found.items() if name.startswith("rmm_")}
        best = min(peers, key=lambda name: peers[name])
        lines.append(
            (
                f"pool: free + malloc of 256 B to 1 MiB, {counted(threads, 'thread')}",
                f"{found['vramkit']:,.0f} ns",
                f"RMM's {best.removeprefix('rmm_')}: {peers[best]:,.0f} ns",
                where,
            )
        )
    found = medians(report, "phases/alone/4")
    peers = {name: value for name, value in found.items() if name.startswith("rmm_")}
    best = min(peers, key=lambda name: peers[name])
    lines.append(
        (
            "pool: one of 100 allocations after 150 rounds of mixed sizes",
            f"{found['vramkit']:,.0f} ns",
            f"RMM's {best.removeprefix('rmm_')}: {peers[best]:,.0f} ns",
            where,
        )
    )
    return lines


def held() -> list[Line]:
    report = result("changing_shapes_h200.json")
    names = {"vramkit": "", "native": "PyTorch", "native_expandable": "expandable segments"}
    in_use = {
        row["program"]: row["in_use_bytes"]
        for row in report["rows"]
        if row["allocator"] == "native"
    }
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for row in report["rows"]:
        if not row["error"]:
            ratios[row["allocator"]].append(row["held_bytes"] / in_use[row["program"]])
    count = len(ratios["vramkit"])
    lines = []
    for what, of in (("median", statistics.median), ("worst", max)):
        peers = "; ".join(
            f"{title}: {of(ratios[name]):.2f}" for name, title in names.items() if title
        )
        lines.append(
            (
                f"pool under PyTorch: held / in use, {what} of {count} programs",
                f"{of(ratios['vramkit']):.2f}",
                peers,
                f"H200, {date(report)}",
            )
        )
    return lines


# Offload


def offload() -> list[Line]:
    report, beside = result("weight_streaming_h200.json"), result("weight_diffusers_h200.json")
    lines = []
    for case, title in (("one token", "a token"), ("prefill 16384", "a prefill of 16,384 tokens")):
        workload = f"ring of 2 layers, {case}"
        row = next(row for row in report["rows"] if row["workload"] == workload)
        accelerate = medians(report, case)["accelerate"]
        diffusers = medians(beside, case)["diffusers"]
        lines.append(
            (
                f"offload: 12 layers of Llama-70B through a ring of 2, {title}",
                f"{row['median']:,.0f} ms, {row['median'] / row['details']['bound_ms']:.3f} of the "
                "bound",
                f"accelerate: {accelerate:,.0f} ms; diffusers: {diffusers:,.0f} ms",
                f"H200, {date(report)}",
            )
        )
    return lines


# Share


def share() -> list[Line]:
    report = load(programs.RESULTS / "sharing_modes_sim.json")
    found = {mode: figure(report, SwitchCase(H200).case, mode, "switch") for mode in MODES}
    ours, faults = f"{found['swap']:.2f} s", f"page faults: {found['paged']:.2f} s"
    where = f"simulated H200, {report.date[:10]}"
    card = sharing_report.read(programs.RESULTS / SHARED)
    row = None if card is None or card.simulated else card.row("switch_full")
    if card is not None and row is not None and row.value is not None:
        ours, faults = f"{row.value:.2f} s", f"{faults} (simulated)"
        where = f"H200, {card.machine.date[:10]}"
    what = "share: two programs of 12 GiB change places on a card that holds one"
    return [(what, ours, faults, where)]


# The lab


def lab() -> list[Line]:
    """Only of a card: simulated times have no allocator's own work in them."""
    report = lab_figures.allocators(programs.RESULTS)[0]
    if report.simulated:
        return []
    engine = lab_tables.engines(report)[-1]
    shares = {
        name: statistics.median(found)
        for name in SUBJECTS
        if (found := lab_tables.allocation_shares(report, name, engine))
    }
    peers = {name: part for name, part in shares.items() if name.startswith(LIBRARIES)}
    best = min(peers, key=lambda name: peers[name], default=None)
    return [
        (
            "lab: what allocation is of the time of table operations",
            percent(shares["pool"]),
            f"{SUBJECTS[best].title}: {percent(peers[best])}" if best else "",
            f"H200, {report.date[:10]}",
        )
    ]


# The ground


def fidelity() -> list[Line]:
    """What the card itself does; what the host does depends on the host."""
    report = result("fidelity_h200.json")
    rows = [row for row in report["scenarios"] if "host" not in row["quantity"]]
    errors = [abs(row["error_percent"]) for row in rows]
    met = sum(row["met"] for row in rows)
    return [
        (
            f"simulated GPU: {len(rows)} times of a card, predicted against measured",
            f"{met} within their goal, {statistics.median(errors):.1f} % off in the median",
            "",
            f"H200, {report['measured_on']['date'][:10]}",
        )
    ]


SECTIONS: tuple[Callable[[], list[Line]], ...] = (
    allocators,
    held,
    offload,
    share,
    lab,
    fidelity,
)


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def table() -> str:
    lines = [line for section in SECTIONS for line in section()]
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join(["| what | vramkit | others | where |", "|---|---|---|---|", *rows])


def written(readme: str) -> str:
    """The README with the table of today between the marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{README} has no lines '{BEGIN}' and '{END}', between which the table belongs")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; status 1: not current"
    )
    options = parser.parse_args()
    before = README.read_text("utf-8")
    after = written(before)
    if options.check:
        return int(before != after)
    README.write_text(after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
