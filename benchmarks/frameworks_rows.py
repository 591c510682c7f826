"""The rows of the frameworks benchmark: what is run, what comes out, how it reads."""

import re
import statistics
from pathlib import Path

import machine
import msgspec
from frameworks_work import Part

MIB = 1 << 20


class Case(msgspec.Struct, frozen=True):
    """One framework doing one thing. The first allocator is the one that the others must equal."""

    framework: str
    mode: str
    allocators: tuple[str, ...]
    seconds: float
    """That one process may take."""


TORCH = ("native", "native_expandable", "vramkit")
CASES = [
    Case("torch", "plain", TORCH, 60),
    Case("torch", "graph", ("native", "vramkit"), 60),
    Case("cupy", "pipeline", ("native", "vramkit"), 60),
    Case("rmm", "buffers", ("rmm_pool", "vramkit"), 40),
    Case("torch", "streams", ("native", "vramkit"), 60),
    Case("torch", "mem_pool", ("native", "vramkit"), 60),
    Case("torch", "compile", ("native", "vramkit"), 100),
    # The tensors have 1,522 MiB at most.
    Case("torch", "within_1900", TORCH, 60),
    Case("torch", "within_1750", TORCH, 60),
    Case("torch", "within_1600", TORCH, 60),
]


class Row(msgspec.Struct):
    """One allocator under one case: milliseconds of one round, peaks in MiB."""

    framework: str
    mode: str
    allocator: str
    unit: str = "ms"
    median: float | None = None
    p10: float | None = None
    p90: float | None = None
    values: list[float] = []
    peak_mib: float | None = None
    """Held by the allocator at most, by its own count."""
    card_mib: float | None = None
    """Gone from the card at most, beyond what the context and the libraries took at the start."""
    equal: bool | None = None
    """To the first allocator's results, bit by bit; None: nothing to compare."""
    digest: str = ""
    difference: str = ""
    details: dict[str, float] = {}
    seconds: float = 0.0
    """The whole process, import and warming up included."""
    error: str = ""


class Report(msgspec.Struct):
    benchmark: str
    device: str
    machine: machine.Machine
    packages: dict[str, str]
    repetitions: int
    rows: list[Row]


def fill(row: Row, part: Part) -> None:
    row.error = part.error
    row.values = part.milliseconds
    row.details = part.details
    row.digest = part.digest
    if part.milliseconds:
        row.median = statistics.median(part.milliseconds)
        if len(part.milliseconds) > 1:
            deciles = statistics.quantiles(part.milliseconds, n=10, method="inclusive")
            row.p10, row.p90 = deciles[0], deciles[-1]
    row.peak_mib = None if part.peak_bytes is None else part.peak_bytes / MIB
    row.card_mib = None if part.card_bytes is None else part.card_bytes / MIB


def compare(row: Row, path: Path, first_row: Row, first_path: Path) -> None:
    """Bit by bit by the digest; where that differs, the first figure that does."""
    if not row.digest or not first_row.digest:
        return
    row.equal = row.digest == first_row.digest
    if row.equal:
        return
    ours, theirs = (
        msgspec.json.decode(file.read_bytes(), type=Part).figures for file in (path, first_path)
    )
    row.difference = first_difference(ours, theirs)


def first_difference(ours: list[str], theirs: list[str]) -> str:
    """In words, for two results whose digests differ."""
    for index, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return f"figure {index} of {len(theirs)}: {our} instead of {their}"
    return f"{len(ours)} figures beside {len(theirs)}, or what is not among them"


def line(row: Row) -> str:
    name = f"{row.framework}/{row.mode} {row.allocator}"
    words = [f"{name}: {figure(row.median)} ms"]
    if row.equal is not None:
        words.append(f"equal: {said(row.equal)}")
    return ", ".join([*words, *filter(None, [note(row)])])


def note(row: Row) -> str:
    """What there is to say beside the figures: how the process ended, and its last line."""
    told = row.error.splitlines()
    return row.difference or ": ".join(dict.fromkeys([*told[:1], *told[-1:]]))


def last_words(text: str) -> str:
    """The last line of what a process said, for a result file: folders of the machine left out."""
    lines = text.strip().splitlines() or [""]
    return re.sub(r"(?<![\w/.])[~.]{0,2}/(?:[^\s/'\":,()]+/)*(?=[^\s/])", "", lines[-1].strip())


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.{1 if abs(value) >= 10 else 3}f}"


def said(equal: bool | None) -> str:
    return "" if equal is None else "yes" if equal else "no"


def markdown(report: Report) -> str:
    named = ", ".join(f"{name} {words}" for name, words in report.packages.items())
    lines = [
        f"{report.device}, {report.machine.cpu}, {report.machine.date[:10]}; {named}. Medians of "
        f"{report.repetitions} rounds with p10 to p90.",
        "",
        "| framework | mode | allocator | ms a round | p10 to p90 | held, MiB | of the card, MiB "
        "| equal | note |",
        "|---|---|---|---:|---|---:|---:|---|---|",
    ]
    for row in report.rows:
        spread = "" if row.p10 is None else f"{figure(row.p10)} to {figure(row.p90)}"
        lines.append(
            f"| {row.framework} | {row.mode} | {row.allocator} | {figure(row.median)} | {spread} "
            f"| {figure(row.peak_mib)} | {figure(row.card_mib)} | {said(row.equal)} "
            f"| {note(row).replace('|', '/')} |"
        )
    return "\n".join(lines)
