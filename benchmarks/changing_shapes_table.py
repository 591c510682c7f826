"""The result of the benchmark of changing shapes as Markdown, and where it stands in the docs."""

import statistics

from changing_shapes_rows import ALLOCATORS, EXPANDABLE, NATIVE, VRAMKIT, Report, Row, Verdict
from frameworks_rows import note
from torch_programs.catalog import PROGRAMS

BEGIN = "<!-- Written by benchmarks/changing_shapes.py publish -->"
END = "<!-- End of what is written -->"


def markdown(report: Report) -> str:
    named = ", ".join(f"{name} {words}" for name, words in report.packages.items())
    lines = [
        f"{report.device}, {report.machine.cpu}, {report.machine.date[:10]}; {named}.",
        "",
        *summary(report.verdicts),
        "",
        "| program | in use, GB | PyTorch held | `expandable_segments` held | vramkit held | of "
        "the better | PyTorch, ms | `expandable_segments`, ms | vramkit, ms | equal |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    rows = {(row.program, row.allocator): row for row in report.rows}
    for verdict in report.verdicts:
        name = verdict.program
        of = {a: rows.get((name, a), Row(name, a)) for a in ALLOCATORS}
        in_use = of[NATIVE].in_use_bytes
        cells = [
            PROGRAMS.get(name, name),
            gigabytes(in_use),
            held(of[NATIVE], in_use),
            held(of[EXPANDABLE], in_use),
            held(of[VRAMKIT], in_use) + missed(verdict.in_use_met, "above 1.03"),
            ratio(verdict.of_the_better) + missed(verdict.held_met, "**lost**"),
            milliseconds(of[NATIVE]),
            milliseconds(of[EXPANDABLE]),
            milliseconds(of[VRAMKIT]) + missed(verdict.time_met, "slower"),
            {None: "", True: "yes", False: "no"}[verdict.equal],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *remarks(report)])


def summary(verdicts: list[Verdict]) -> list[str]:
    """How many rows meet what is wanted, the worst one and the median."""
    lines = [
        f"- {count([v.held_met for v in verdicts])}: vramkit holds at most 1.02 of the better of "
        "the two;",
        f"- {count([v.in_use_met for v in verdicts])}: it holds at most 1.03 of what is in use;",
        f"- {count([v.time_met for v in verdicts])}: it takes at most the time of the faster, "
        "within the spread.",
    ]
    measured = {v.program: v.of_in_use for v in verdicts if v.of_in_use is not None}
    if measured:
        worst = max(measured, key=measured.__getitem__)
        lines += [
            "",
            f"vramkit holds {measured[worst]:.3f} of what is in use in the worst row ({worst}) and "
            f"{statistics.median(measured.values()):.3f} in the median one.",
        ]
    return lines


def count(met: list[bool | None]) -> str:
    return f"{sum(value is True for value in met)} of {len(met)} rows"


def remarks(report: Report) -> list[str]:
    """Errors, differences, and rows whose memory on the card is not what allocators say."""
    found = list(report.notes)
    for row in report.rows:
        if words := note(row):
            found.append(f"{row.program}, {row.allocator}: {words}")
    for program in report.programs():
        found += filter(None, (beside(report, program), more_in_use(report, program)))
    if not found:
        return []
    # Words of foreign programs: a line each, and nothing that a table could take for a column.
    return ["", *(f"- {' '.join(words.split())}" for words in found)]


def beside(report: Report, program: str) -> str:
    """What the card lost beside the allocator's own count must be about the same for all."""
    others = {
        row.allocator: row.card_bytes - row.held_bytes
        for row in report.rows
        if row.program == program and row.card_bytes is not None and row.held_bytes is not None
    }
    native = others.get(NATIVE)
    if native is None:
        return ""
    apart = {name: value - native for name, value in others.items()}
    far = [f"{name} {value / 1e9:+.2f} GB" for name, value in apart.items() if abs(value) > 256e6]
    if not far:
        return ""
    return f"{program}: gone from the card beside what is held, against {NATIVE}: {', '.join(far)}"


def more_in_use(report: Report, program: str) -> str:
    """The same program should have the same tensors: else something else is compared as well."""
    rows = {row.allocator: row for row in report.rows if row.program == program}
    native, ours = (rows[name].in_use_bytes if name in rows else None for name in (NATIVE, VRAMKIT))
    if not native or not ours or abs(ours - native) <= 0.02 * native:
        return ""
    return f"{program}: in use with vramkit {gigabytes(ours)} GB, {gigabytes(native)} without"


def held(row: Row, in_use: int | None) -> str:
    if row.held_bytes is None:
        return "failed" if row.error else "-"
    share = f" ({row.held_bytes / in_use:.2f})" if in_use else ""
    return gigabytes(row.held_bytes) + share


def gigabytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e9:.2f}"


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def milliseconds(row: Row) -> str:
    if row.median is None or row.p10 is None or row.p90 is None:
        return "failed" if row.error else "-"
    return f"{row.median:,.0f} ({row.p10:,.0f} to {row.p90:,.0f})"


def missed(met: bool | None, words: str) -> str:
    return f", {words}" if met is False else ""


def written(document: str, table: str) -> str:
    """The document with this table between the marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks the lines '{BEGIN}' and '{END}'")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"
