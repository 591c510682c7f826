"""An examination as tables and sentences in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from vramkit.doctor.facts import Card, DriverFacts, Examination, Limits, Severity, Spread
from vramkit.doctor.judge import link_text
from vramkit.report.blocks import SIGNS, Table, Tone
from vramkit.report.terminal import code_spans, table
from vramkit.report.terminal_style import TONES
from vramkit.report.units import bytes_text, free_text, rate_text, time_text, version_text

SEVERITY_TONES: dict[Severity, Tone] = {
    "ok": "good",
    "note": "note",
    "warning": "warning",
    "problem": "bad",
}
OVERCOMMIT = {0: "heuristic (0)", 1: "always (1)", 2: "never (2)"}


def print_examination(console: Console, examination: Examination) -> None:
    for block in tables(examination):
        console.print(table(block))
        console.print()
    console.print(Text("Verdict", style="bold"))
    for finding in examination.findings:
        tone = SEVERITY_TONES[finding.severity]
        sign = f"{SIGNS[tone]} {finding.severity:<8}"
        console.print(Text.assemble((sign, TONES[tone]), " "), end="")
        console.print(code_spans(finding.what))
        for text in filter(None, (finding.why, finding.fix)):
            console.print(_indented(text, console.width))


def _indented(text: str, width: int) -> Text:
    """Wrapped under the finding it belongs to."""
    lines = code_spans(text).wrap(Console(width=width), max(width - 11, 20))
    return Text("\n").join(Text(" " * 11, style="") + line for line in lines)


def tables(examination: Examination) -> list[Table]:
    """The facts; every table of a simulated card says so in its title."""
    found = [_machine(examination)]
    if examination.driver is not None:
        found.append(_driver(examination, examination.driver, examination.card))
    if examination.copies:
        found.append(_copies(examination))
    if examination.calls:
        found.append(_calls(examination))
    if examination.pinning:
        found.append(_pinning(examination))
    return found


def _title(text: str, examination: Examination) -> str:
    profile = examination.simulated
    return text if profile is None else f"{text} (simulated, profile {profile})"


def _machine(examination: Examination) -> Table:
    limits: Limits = examination.limits
    huge = limits.huge_pages_free * limits.huge_page_bytes
    rows = [
        ["Machine", examination.machine],
        ["RAM", f"{bytes_text(limits.ram_total)}, {bytes_text(limits.ram_available)} available"],
        ["Memory limit", _limit(limits.memory_limit, f" ({limits.memory_limit_source})")],
        ["Locked memory", _limit(limits.locked_memory, " (ulimit -l)")],
        ["Transparent huge pages", limits.transparent_huge_pages or "unknown"],
        ["Reserved huge pages", f"{bytes_text(huge)} free"],
        ["/dev/shm", _shared(limits)],
        ["Overcommit", OVERCOMMIT.get(limits.overcommit or 0, "unknown")],
    ]
    return Table(["", ""], rows, f"Host · vramkit {examination.vramkit}, {examination.date}")


def _limit(value: int | None, source: str) -> str:
    return "none" if value is None else bytes_text(value) + source


def _shared(limits: Limits) -> str:
    if limits.shared_memory_total is None or limits.shared_memory_free is None:
        return "not there"
    return free_text(limits.shared_memory_total, limits.shared_memory_free)


def _driver(examination: Examination, driver: DriverFacts, card: Card | None) -> Table:
    version = f"CUDA {version_text(driver.version)}"
    if driver.nvidia_version:
        version += f", NVIDIA {driver.nvidia_version}"
    rows = [["Driver", version], ["Library", driver.path]]
    if card is not None:
        link = card.link
        best = link_text(link.max_generation, link.max_width)
        major, minor = card.compute_capability
        rows += [
            ["Card", f"{card.name}, device {card.ordinal}"],
            ["UUID", card.uuid],
            ["PCI", card.pci_bus_id],
            ["Compute capability", f"{major}.{minor}, {card.multiprocessors} multiprocessors"],
            ["Memory", _memory(card)],
            [
                "Link",
                f"{link_text(link.generation, link.width)} of {best} ({link.source})"
                if link.generation
                else f"unknown ({link.source})",
            ],
        ]
    return Table(["", ""], rows, _title("Card", examination))


def _memory(card: Card) -> str:
    text = free_text(card.memory_total, card.memory_free)
    if card.profile_memory is None or card.profile_memory == card.memory_total:
        return text
    return f"{text} (the profile's card: {bytes_text(card.profile_memory)})"


def _range(spread: Spread, text: str, low: str, high: str) -> list[str]:
    return [text, "" if low == high else f"{low} to {high}"]


def _rates(spread: Spread) -> list[str]:
    return _range(spread, *map(rate_text, (spread.median, spread.low, spread.high)))


def _times(spread: Spread) -> list[str]:
    return _range(spread, *map(time_text, (spread.median, spread.low, spread.high)))


def _copies(examination: Examination) -> Table:
    rows = [
        [copy.what, *_rates(copy.rate), "each way" if copy.each_way else ""]
        for copy in examination.copies
    ]
    size = bytes_text(examination.copies[0].nbytes)
    title = _title(f"Copies of {size}", examination)
    return Table(["way", "rate", "spread", ""], rows, title, [1, 2])


def _calls(examination: Examination) -> Table:
    rows = [
        [
            call.call if call.nbytes is None else f"{call.call} {bytes_text(call.nbytes)}",
            *_times(call.seconds),
        ]
        for call in examination.calls
    ]
    title = _title("Host time of a call, from Python", examination)
    return Table(["call", "time", "spread"], rows, title, [1, 2])


def _pinning(examination: Examination) -> Table:
    """On a simulated card touching is real and pinning is not, so that there is no total."""
    simulated = examination.simulated is not None
    rows = []
    for entry in examination.pinning:
        touch = "" if entry.touch is None else rate_text(entry.nbytes / entry.touch.median)
        pin = rate_text(entry.nbytes / entry.pin.median)
        total = [] if simulated else ["" if entry.rate is None else rate_text(entry.rate.median)]
        rows.append([entry.method, str(entry.threads), touch, pin, *total])
    columns = ["method", "threads", "touch (real)" if simulated else "touch", "pin"]
    if not simulated:
        columns.append("both")
    size = bytes_text(examination.pinning[0].nbytes)
    title = _title(f"Pinning {size} of host memory", examination)
    return Table(columns, rows, title, list(range(1, len(columns))))
