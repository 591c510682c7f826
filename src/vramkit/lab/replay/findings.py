"""What the figures of a replay say, by stated rules."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from vramkit.lab.experiment import Finding
from vramkit.lab.replay.page import FLATTERED, rows_of, workloads
from vramkit.lab.replay.settings import SMALLEST, WITH_LIMIT
from vramkit.lab.result import Report, Row
from vramkit.lab.samples import compare
from vramkit.report.blocks import Tone
from vramkit.report.units import bytes_text, percent_text

OURS = "pool"
KEEPS_NOTHING = ("direct",)
"""Each call of it is one of the driver: it holds what is in use, and is for comparison."""
NOTHING_FROM_TIMES = (
    "The times are simulated: nothing is concluded from them. The memory is counted as a card "
    "counts it."
)


def findings(report: Report) -> list[Finding]:
    found = [each for name in workloads(report) for each in _of_workload(report, name)]
    if found and report.simulated is not None:
        found.append(Finding("note", NOTHING_FROM_TIMES))
    if found and report.settings.get("kernel_us") == 0:
        found.append(Finding("warning", FLATTERED))
    return found


def _of_workload(report: Report, workload: str) -> Iterator[Finding]:
    if report.simulated is None:
        yield from _most_to_save(workload, rows_of(report, workload))
    yield from _held(report, workload, rows_of(report, workload))
    yield from _smallest(workload, rows_of(report, workload, SMALLEST))
    arms = dict.fromkeys(row.arm for row in report.rows if row.workload == workload)
    for arm in arms:
        if arm not in ("", WITH_LIMIT, SMALLEST):
            yield from _card(workload, arm, rows_of(report, workload, arm))


def _held(report: Report, workload: str, rows: list[Row]) -> Iterator[Finding]:
    held = {row.subject: row.values["held"] for row in rows if row.values.get("held")}
    row = next((row for row in rows if row.subject == OURS), None)
    if row is None or OURS not in held or not row.values.get("held_ratio"):
        return
    ours, ratio = held.pop(OURS), median(row.values["held_ratio"])
    text = f"{workload}: vramkit's pool holds {bytes_text(median(ours))} at most, {ratio:.3f} "
    text += "times what is in use"
    tone: Tone = "note"
    held = {name: values for name, values in held.items() if name not in KEEPS_NOTHING}
    if held:
        least = min(held, key=lambda name: median(held[name]))
        text += f"; of the others that keep memory {least} holds least, "
        text += bytes_text(median(held[least]))
        # Bytes that a simulated card counts repeat: one repetition says it all.
        exact = report.simulated is not None
        verdict = compare(ours, held[least]).verdict
        if verdict == "higher" or (exact and median(ours) > median(held[least])):
            text += ", which is less"
        elif exact or verdict != "too few":
            tone = "good"
    yield Finding(tone, f"{text}.", "medians of the peaks of what each has taken from the driver")


def _smallest(workload: str, rows: list[Row]) -> Iterator[Finding]:
    needs = {
        row.subject: median(row.values["smallest_card"])
        for row in rows
        if row.values.get("smallest_card")
    }
    if not needs:
        return
    ordered = sorted(needs, key=lambda name: needs[name])
    parts = [f"{bytes_text(needs[name])} with {name}" for name in ordered]
    yield Finding(
        "note",
        f"{workload}: needs a card of {', '.join(parts)}.",
        "found by bisection on simulated cards, to 16 MiB or 1/256 of what is in use; an allocator "
        "that must be given a size gets the whole card",
    )


def _card(workload: str, arm: str, rows: list[Row]) -> Iterator[Finding]:
    fits = [row.subject for row in rows if row.outcome == "measured"]
    full = [row.subject for row in rows if row.outcome == "out of memory"]
    if not fits and not full:
        return
    parts = []
    if fits:
        parts.append(f"fits with {', '.join(fits)}")
    if full:
        parts.append(f"runs out of memory with {', '.join(full)}")
    tone: Tone = "bad" if not fits else "warning" if full else "good"
    text = f"{workload}, on a {arm}: {'; '.join(parts)}."
    yield Finding(tone, text, "replayed on a simulated card of that size")


def _most_to_save(workload: str, rows: list[Row]) -> Iterator[Finding]:
    shares = {
        row.subject: median(row.values["allocation_share"])
        for row in rows
        if row.values.get("allocation_share")
    }
    if shares:
        most = max(shares, key=lambda name: shares[name])
        yield Finding(
            "note",
            f"{workload}: allocations and frees are {percent_text(min(shares.values()))} to "
            f"{percent_text(shares[most])} of the time of the replay (most with {most}). "
            "Calls that took no time would save that, at most.",
            "the stand-in kernels are a part of that time: it is a share of the program's own time "
            "only where launches and their end were recorded",
        )
