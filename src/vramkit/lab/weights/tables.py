"""Tables and charts of a report, for the lab and for docs/weights.md."""

from __future__ import annotations

from collections.abc import Iterator

from vramkit.lab.experiment import Case
from vramkit.lab.figures import figure
from vramkit.lab.result import Report
from vramkit.lab.weights.cases import (
    BUDGETS,
    DRAWN,
    NEIGHBOUR_LINKS,
    DecoderCase,
    NeighbourCase,
    StudyCase,
)
from vramkit.lab.weights.claims import STUDY_MS
from vramkit.lab.weights.study import (
    HOSTS,
    MB,
    PARTS,
    PROFILE_RATE,
    RINGS,
    STEPS,
    WAITS_5_MS,
    WAITS_20_MS,
    link_text,
)
from vramkit.report.blocks import BarChart, Block, Table, ValueBar
from vramkit.weights.passes import Host

STUDY_COPIED = {"history1": "400 / 600", "history": "0 / 100"}
ORDER = ("history1", "history", "stage1", "stage2", "first_step", "block_shallow", "auto")
WITH_RINGS = (*ORDER, *RINGS)
DECODER = ("resident", *WITH_RINGS, "accelerate", "diffusers")


def blocks(report: Report) -> Iterator[Block]:
    yield chart(report)
    for table in (*(totals(report, link) for link in (PROFILE_RATE, WAITS_5_MS)), a_layer(report)):
        if table.rows:
            yield table
    for policy in ORDER:
        row = report.row(DRAWN.case.workload, policy, DRAWN.case.arm)
        yield from row.drawings if row is not None else []
    if _figure(report, StudyCase(PROFILE_RATE, "group"), "auto", "ffn_bytes") is not None:
        yield copied(report)
    for table in (jittered(report, WAITS_20_MS), jitter_by_link(report), decoder(report)):
        if table.rows:
            yield table


def _figure(
    report: Report, case: StudyCase | NeighbourCase | DecoderCase, subject: str, quantity: str
) -> float | None:
    return figure(report, case.case, subject, quantity)


def chart(report: Report) -> BarChart:
    """Above the bound, on the two links of which the study speaks."""
    bars = [
        ValueBar(
            policy,
            None if over is None else max(0.0, over - 1),
            group=f"{link_text(link)}, {STEPS['layer']}",
            why="" if over is not None else "no figures",
        )
        for link in (PROFILE_RATE, WAITS_5_MS)
        for policy in ORDER
        for over in [_figure(report, StudyCase(link, "layer"), policy, "over_bound")]
    ]
    return BarChart("A steady pass, above the bound", bars, "share", "policy", better="lower")


def totals(report: Report, link: float) -> Table:
    """Steady passes, the cold ones in brackets."""

    def cell(policy: str, host: Host) -> str:
        case = StudyCase(link, host)
        steady, cold = (_figure(report, case, policy, each) for each in ("steady", "cold"))
        return "" if steady is None or cold is None else f"{steady:,.1f} ({cold:,.1f})"

    rows = []
    for policy in ORDER:
        ring = _figure(report, StudyCase(link, "ahead"), policy, "ring")
        said = STUDY_MS.get(policy)
        cells = [cell(policy, host) for host in HOSTS]
        if any(cells):
            words = "" if said is None else f"{said:,}"
            rows.append([policy, _number(ring and ring / MB), words, *cells])
    columns = ["policy", "ring, MB", "the study says", *STEPS.values()]
    title = f"Milliseconds of a steady pass, and of the cold one before, at {link_text(link)}"
    return Table(columns, rows, title, [1, 2, 3, 4, 5])


def a_layer(report: Report) -> Table:
    """CPU blocked, GPU idle and wall-clock time a layer."""
    cases: list[tuple[str, float, Host, str]] = [
        ("history1", WAITS_5_MS, "layer", "2 / 0 / 202"),
        ("history", WAITS_5_MS, "layer", "0 / 5 / 205, in its second account"),
        ("history", WAITS_20_MS, "layer", "0 / 20 / 220, in its first"),
        ("history", PROFILE_RATE, "layer", ""),
        ("history", PROFILE_RATE, "group", ""),
        ("stage1", WAITS_5_MS, "layer", "0 / 0 / 200"),
        ("block_shallow", WAITS_5_MS, "layer", '"slowest"'),
    ]
    rows = []
    for policy, link, host, said in cases:
        case = StudyCase(link, host)
        found = [_figure(report, case, policy, each) for each in ("blocked", "idle", "layer")]
        words = f"{policy}, {link_text(link)}, {STEPS[host]}"
        if any(each is not None for each in found):
            rows.append([words, *(_number(each, 1) for each in found), said])
    columns = ["", "CPU blocked, ms", "GPU idle, ms", "wall clock, ms", "the study says"]
    return Table(columns, rows, "A layer of a steady pass", [1, 2, 3])


def copied(report: Report) -> Table:
    """MB copied while attention and ffn of a layer computed."""
    case = StudyCase(PROFILE_RATE, "group")
    rows = []
    for policy in ORDER:
        cells = []
        for before in ("first_", ""):
            pair = [_figure(report, case, policy, f"{before}{part}_bytes") for part in PARTS]
            cells.append(" / ".join(_number(each and each / MB) for each in pair))
        rows.append([policy, *cells, STUDY_COPIED.get(policy, "")])
    columns = ["policy", "first layer, cold", "a layer, steady", "the study says"]
    title = "MB copied while attention and while ffn compute, at 5 GB/s, in step with the group"
    return Table(columns, rows, title, [1, 2])


def jittered(report: Report, link: float) -> Table:
    """Median and slowest pass beside another program, by host."""
    cases = {STEPS[host]: NeighbourCase(link, host).case for host in HOSTS}
    title = f"Median and slowest pass beside another program, ms, at {link_text(link)}"
    return _medians_and_slowest(report, cases, WITH_RINGS, title)


def jitter_by_link(report: Report) -> Table:
    """... by link, with the host ahead."""
    cases = {link_text(link): NeighbourCase(link, "ahead").case for link in NEIGHBOUR_LINKS}
    title = "Median and slowest pass beside another program, ms, host ahead"
    return _medians_and_slowest(report, cases, ("history", "stage1", "auto", *RINGS), title)


def _medians_and_slowest(
    report: Report, cases: dict[str, Case], subjects: tuple[str, ...], title: str
) -> Table:
    """No rows where not all of the cases were measured."""
    rows = []
    for subject in subjects:
        cells, rings = [], set()
        for case in cases.values():
            pair = [figure(report, case, subject, each) for each in ("steady", "slowest")]
            rings.add(figure(report, case, subject, "ring"))
            if None not in pair:
                cells.append(", ".join(_number(each) for each in pair))
        ring = rings.pop()
        if len(cells) == len(cases):
            rows.append([subject.partition("_")[0] if subject in RINGS else subject])
            rows[-1] += [_number(ring and ring / MB), *cells]
    numeric = list(range(1, len(cases) + 2))
    return Table(["policy", "ring, MB", *cases], rows, title, numeric)


def decoder(report: Report) -> Table:
    """A model of PyTorch on a real card."""
    columns, quantities = ["subject"], ("token", "prefill")
    columns += [f"{each}, {budget}, ms" for budget in BUDGETS for each in quantities]
    rows = []
    for subject in DECODER:
        found = [
            _figure(report, DecoderCase(budget), subject, each)
            for budget in BUDGETS
            for each in quantities
        ]
        if any(each is not None for each in found):
            rows.append([subject, *(_number(each, 1) for each in found)])
    title = "A pass of a decoder: one token, and a prefill"
    return Table(columns, rows, title, [1, 2, 3, 4])


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
