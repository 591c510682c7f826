"""What the study says, judged by the figures of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vramkit.lab.claims import FACTOR, Claim, Verdict, settled
from vramkit.lab.experiment import Finding
from vramkit.lab.figures import figure, plainly, within
from vramkit.lab.result import Report
from vramkit.lab.sharing.cases import (
    GIBS,
    H200,
    HALF_DUPLEX,
    MODES,
    PROGRAM,
    QUANTA,
    STUDY,
    WINDOWS,
    Machine,
    SwitchCase,
    TurnsCase,
    without_eviction,
)
from vramkit.report.units import bytes_text, rate_text, value_text

PAGE = 4096
FAULT_SECONDS = 15e-6
LINK = 16e9
ADDED_PASSES, ADDED_BYTES, NATIVE_SECONDS, MANAGED_SECONDS = 4000, 12e9, 155.0, 159.0
"""Of the program that the study ran: additions of arrays that have 12 GB together."""
QUANTUM = 30.0
MATTERS = 0.10
"""Of the share of the time: from here on an axis is said to matter."""

AXES = {
    "the window": [TurnsCase(STUDY, 12, QUANTUM, window) for window in WINDOWS],
    "the quantum": [TurnsCase(STUDY, 12, quantum, 32) for quantum in QUANTA],
    "the amount of memory": [TurnsCase(STUDY, gib, QUANTUM, 32) for gib in GIBS],
}
"""From the study's case (12 GiB, 30 s), with windows of 32 launches, one thing at a time."""


@dataclass(frozen=True)
class Managed:
    """What a card has answered about managed memory. Rates are of sweeps, in bytes a second."""

    card: str
    nbytes: int
    native_rate: float
    """Of memory of cuMemAlloc."""
    first_rate: float
    """Of the sweep that touches it first."""
    later_rate: float
    shown: int | None
    """Of it, once it was swept: what NVML shows for the process, or for the card. None: no NVML."""


def claims(report: Report, managed: Managed | None = None) -> list[Claim]:
    """Those for which the report has figures, and two for which a card has."""
    return [*_switches(report), *_shares(report), *_from_figures(), *_on_card(managed)]


def _switch(report: Report, mode: str, case: SwitchCase) -> float | None:
    return figure(report, case.case, mode, "switch")


def _share(report: Report, mode: str, case: TurnsCase) -> float | None:
    return figure(report, case.case, mode, "share")


def _switches(report: Report) -> Iterator[Claim]:
    paged = _switch(report, "paged", SwitchCase(STUDY))
    on_h200 = _switch(report, "paged", SwitchCase(H200))
    if paged is not None:
        pages = PROGRAM // PAGE
        found = f"{paged:.2f} s in its own model of one fault after the other"
        if on_h200 is not None:
            found += f"; {on_h200:.2f} s at the rate at which an H200 pages in"
        yield settled(
            "a switch by page faults takes 47 s",
            f"{found}.",
            "in part" if within(paged, 47.2, 0.01) else "not confirmed",
            f"in part: in its own model, {pages:,} pages x 15 us = {pages * FAULT_SECONDS:.2f} s, "
            "within 1 %",
        )
    empty = _switch(report, "prefetch", SwitchCase(STUDY, empty=True))
    full = _switch(report, "prefetch", SwitchCase(STUDY))
    if empty is not None and full is not None:
        yield settled(
            "a prefetch of 12 GB takes 0.75 s",
            f"{empty:.3f} s into an empty card, {full:.3f} s where the other program has to leave.",
            plainly(within(empty, 0.75, 0.01)),
            f"its pages are 12 GiB: {PROGRAM / 1e9:.2f} GB / 16 GB/s = {PROGRAM / 16e9:.3f} s; "
            "within 1 %",
        )
        yield settled(
            "with prefetch a switch takes 1 to 2 s",
            f"{full:.3f} s.",
            "confirmed" if 1 <= full <= 2 else "in part" if full < 1 else "not confirmed",
            "1 to 2 s, and in part if it takes less; with the other program's memory on the card",
        )
    stuck = _switch(report, "prefetch", SwitchCase(without_eviction(STUDY)))
    safe = _switch(report, "prefetch_out_in", SwitchCase(without_eviction(STUDY)))
    if stuck is not None and safe is not None and full is not None:
        yield settled(
            "prefetching the winner's memory is the remedy",
            f"{full:.3f} s if the driver evicts for a prefetch, {stuck:.1f} s if it does not; "
            f"with the loser's memory out first {safe:.2f} s either way.",
            "confirmed" if stuck <= 2 else "in part" if full <= 2 else "not confirmed",
            "at most 2 s, and in part if that holds only where a prefetch to a full card evicts",
        )


def _shares(report: Report) -> Iterator[Claim]:
    case = TurnsCase(STUDY, 12, QUANTUM, 32)
    paged = _share(report, "paged", case)
    single = _share(report, "paged", TurnsCase(STUDY, 12, QUANTUM, 1))
    on_h200 = _share(report, "paged", TurnsCase(H200, 12, QUANTUM, 32))
    if paged is not None and single is not None and on_h200 is not None:
        yield settled(
            "3 % of the speed is left by paging",
            f"{_percent(paged)} with windows of 32 launches, {_percent(single)} with one: a turn "
            "lasts as long as its faults and the launches under way. With the figures of an H200 "
            f"{_percent(on_h200)}.",
            "in part" if within(paged, 0.03, 0.25) else "not confirmed",
            "in part: in its own model, within a quarter of 3 %; the share of the time computing, "
            "12 GiB, 30 s, windows of 32",
        )
        yield settled(
            "99 % of the time goes into paging, 1 % into computing",
            f"{_percent(1 - paged)} and {_percent(paged)} with windows of 32 launches, "
            f"{_percent(1 - single)} and {_percent(single)} with one.",
            plainly(within(paged, 0.01, 0.5) or within(single, 0.01, 0.5)),
            "its own model, which it says leaves 3 % elsewhere; 1 % within a half, with windows of "
            "32 or of 1",
        )
    prefetch, swap = (_share(report, mode, case) for mode in ("prefetch", "swap"))
    if prefetch is not None and swap is not None:
        yield settled(
            "prefetch leaves more than 90 % of a quantum of 30 s",
            f"{_percent(prefetch)}; {_percent(swap)} by the swap engine.",
            plainly(prefetch > 0.9),
            "share of the time computing, 12 GiB, 30 s, windows of 32; above 90 %",
        )
    ranges = axis_ranges(report, "paged")
    if ranges.keys() == AXES.keys():
        moved = [axis for axis, (least, most) in ranges.items() if most - least > MATTERS]
        yield settled(
            "window, quantum and amount change nothing as long as memory comes by paging",
            f"{'; '.join(f'{axis}: {_range(ranges[axis])}' for axis in ranges)}.",
            plainly(not moved),
            f"share by paging, one of the three varied; at most {_percent(MATTERS)} between the "
            "least and the most",
        )


def _from_figures() -> Iterator[Claim]:
    """What follows from the study's own."""
    rate = 1 / FAULT_SECONDS
    part = _percent(QUANTUM * rate * PAGE / PROGRAM)
    yield settled(
        "60 % of the pages come in 30 s, at 66,000 faults a second",
        f"{part} of 12 GiB, at {rate:,.0f}: arithmetic of one fault after the other.",
        "in part",
        "in part: in its own model, 30 s / 15 us x 4 KiB / 12 GiB",
    )
    speed = ADDED_PASSES * ADDED_BYTES / NATIVE_SECONDS
    yield settled(
        "memory that stayed on the host would make a program 10 to 20 times slower",
        f"{speed / 1e9:.0f} GB/s by its own figures, {speed / LINK:.0f} times its link of "
        f"{LINK / 1e9:.0f} GB/s.",
        "in part",
        "in part: in its own figures, 4,000 passes over 12 GB in 155 s against the link",
    )


def _on_card(managed: Managed | None) -> Iterator[Claim]:
    """What no simulated card can tell."""
    cost = "managed memory alone costs 159 s in place of 155 s"
    shown = "1 GB is shown while 12 GB are used"
    if managed is None:
        question = "a question to a card"
        model = "Put into the model as the first touch of 12 GiB: 4 s, 2.6 %."
        yield settled(cost, model, "cannot be said here", question)
    else:
        yield settled(cost, *_cost_of_managed(managed))
    if managed is None or managed.shown is None:
        counters = "A question to a driver's own counters, under `vramkit run --mode paged`."
        yield settled(shown, counters, "cannot be said here", "a question to a card")
    else:
        yield settled(shown, *_shown_of_managed(managed, managed.shown))


def _cost_of_managed(managed: Managed) -> tuple[str, Verdict, str]:
    native = ADDED_PASSES / managed.native_rate
    part = (1 / managed.first_rate + (ADDED_PASSES - 1) / managed.later_rate) / native - 1
    claimed = MANAGED_SECONDS / NATIVE_SECONDS - 1
    near = claimed / FACTOR <= part <= claimed * FACTOR
    return (
        f"{_percent(part)} on an {managed.card}: sweeps of {bytes_text(managed.nbytes)} at "
        f"{rate_text(managed.first_rate)} at the first touch, {rate_text(managed.later_rate)} "
        f"later, and {rate_text(managed.native_rate)} with memory of cuMemAlloc, each once.",
        "confirmed" if near else "in part" if part > 0 else "not confirmed",
        f"confirmed: between half and twice {_percent(claimed)} for {ADDED_PASSES:,} sweeps, of "
        "which the first touches the memory; in part: another cost",
    )


def _shown_of_managed(managed: Managed, shown: int) -> tuple[str, Verdict, str]:
    part = shown / managed.nbytes
    verdict: Verdict = "confirmed" if part < 0.1 else "in part" if part < 0.9 else "not confirmed"
    return (
        f"Of {bytes_text(managed.nbytes)} that were swept on an {managed.card}, NVML shows "
        f"{bytes_text(shown)}.",
        verdict,
        "confirmed: less than a tenth of what is on the card is shown; in part: less than nine "
        "tenths",
    )


def axis_ranges(report: Report, mode: str) -> dict[str, tuple[float, float]]:
    """By axis the least and the most of the share; only axes that were measured as a whole."""
    found = {}
    for axis, cases in AXES.items():
        shares = [_share(report, mode, case) for case in cases]
        known = [share for share in shares if share is not None]
        if len(known) == len(cases):
            found[axis] = min(known), max(known)
    return found


def advice(report: Report) -> Iterator[Finding]:
    """What switches cost, what matters in which mode, what moving both ways at once is worth."""
    yield from _cost(report)
    for mode in ("paged", "prefetch", "swap"):
        ranges = axis_ranges(report, mode)
        words = [
            f"{axis} {'matters' if most - least > MATTERS else 'hardly matters'}"
            f" ({_range((least, most))})"
            for axis, (least, most) in ranges.items()
        ]
        if words:
            yield Finding(
                "plain",
                f"{mode}: {', '.join(words)}.",
                f"share of the time computing around 12 GiB, {QUANTUM:g} s and windows of 32, one "
                f"varied at a time; matters: more than {_percent(MATTERS)} between least and most",
            )
    yield from (each for each in (_both(report, STUDY), _both(report, HALF_DUPLEX)) if each)
    yield Finding(
        "note",
        "All of this is simulated: one process holds both programs, and a sweep in order of "
        "address is the kindest pattern. A card is measured with real processes under "
        "`vramkit run`, by the benchmarks of sharing.",
    )


def _cost(report: Report) -> Iterator[Finding]:
    case = TurnsCase(STUDY, 12, QUANTUM, 32)
    shares = {mode: _share(report, mode, case) for mode in MODES}
    costs = [f"{_percent(1 - part)} by {mode}" for mode, part in shares.items() if part is not None]
    if costs:
        yield Finding(
            "plain",
            f"Of the time, switches take {', '.join(costs)}: switches that took no time would "
            "save that, at most.",
            f"the time not computing, 12 GiB, {QUANTUM:g} s, windows of 32, on the study's card",
        )


def _both(report: Report, machine: Machine) -> Finding | None:
    apart = _switch(report, "swap_out_in", SwitchCase(machine))
    both = _switch(report, "swap", SwitchCase(machine))
    if not apart or both is None:
        return None
    change = round(100 * (both / apart - 1))
    gain = f"{change:+} %" if change else "no difference"
    return Finding(
        "good" if both < 0.9 * apart else "plain",
        f"At {machine.name} a switch by swap takes {value_text(apart, 's')} out and then in, and "
        f"{value_text(both, 's')} with both at once: {gain}.",
        "swap against swap_out_in, a later switch; good: at least 10 % less",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.{2 if share < 0.1 else 1}f} %"


def _range(ends: tuple[float, float]) -> str:
    return f"{_percent(ends[0])} to {_percent(ends[1])}"
