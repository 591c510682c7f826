"""What the figures of a report allow to say, by stated rules."""

from __future__ import annotations

from vramkit.lab.claims import claim_summary, range_text, without_repeated_rules
from vramkit.lab.experiment import Finding
from vramkit.lab.fragmentation.changes import (
    EXPLANATIONS,
    RULE,
    Explanation,
    change,
    change_text,
    explanation,
)
from vramkit.lab.fragmentation.claims import CLAIMS
from vramkit.lab.fragmentation.experiment import EXTREMES, NEARLY_FULL
from vramkit.lab.fragmentation.measuring import ALONE, TOUCH
from vramkit.lab.ranking import listed, measured, medians, percent
from vramkit.lab.result import Report
from vramkit.lab.samples import Spread, ratio
from vramkit.report.units import time_text

OURS = "pool"
SHARE_RULE = (
    "phase 5 with a warm-up: an allocation alone, over an allocation with the launch of a kernel "
    "that writes the block and the card's work; medians, and percentiles 10 to 90"
)
CHANGE_RULE = (
    "a change is one where the percentiles 10 to 90 do not overlap, the medians are more than 1 % "
    "apart, and there are at least 5 repetitions, or figures that repeat exactly"
)


def findings(report: Report) -> list[Finding]:
    found = [_share(report)]
    if report.simulated is not None:
        found.append(
            Finding(
                "note",
                "Times are simulated: of an allocator they have the driver's calls alone, and not "
                "its own search for a block. A change says that an allocator makes more or fewer "
                "driver calls; caches cannot show, and nothing is recommended.",
            )
        )
    subjects = list(dict.fromkeys(row.subject for row in report.rows))
    changes = {name: text for name in subjects if (text := _changes(report, name))}
    found += [
        Finding("plain", f"{listed(names)}, an allocation against phase 1: {text}.", CHANGE_RULE)
        for text, names in _alike(changes).items()
    ]
    found += _explained(report, list(changes))
    found += [each for workload in EXTREMES for each in _extreme(report, workload)]
    found += _nearly_full(report)
    return without_repeated_rules([*found, claim_summary(report, CLAIMS)])


def _share(report: Report) -> Finding:
    alone = measured(report, ALONE, "warm", "phase_5").get(OURS)
    touched = measured(report, TOUCH, "warm", "phase_5").get(OURS)
    if alone is None or touched is None:
        return Finding(
            "warning",
            f"What share of the time allocation is cannot be said: `{OURS}` has no figures.",
            SHARE_RULE,
        )
    times = (time_text(Spread.of(each).median / 1e9) for each in (alone, touched))
    words = (
        f"An allocation takes {range_text(ratio(alone, touched), percent)} of the time until its "
        f"block is written with `{OURS}`: {' of '.join(times)}"
    )
    if report.simulated is not None:
        words += " (simulated, with the driver's calls alone): nothing follows for a card."
    else:
        words += ". An allocation that took no time would save that, at most."
    return Finding("plain", words, SHARE_RULE)


def _alike(words: dict[str, str]) -> dict[str, list[str]]:
    """Subjects by what is said of them: what can be said of several is said once."""
    found: dict[str, list[str]] = {}
    for subject, text in words.items():
        found.setdefault(text, []).append(subject)
    return found


def _changes(report: Report, subject: str) -> str:
    """With and without a warm-up; empty where nothing was measured."""
    parts = []
    for arm in ("cold", "warm"):
        for phase in (3, 5):
            difference = change(report, subject, ALONE, arm, "phase_1", f"phase_{phase}")
            if difference is not None:
                parts.append(f"{arm}, phase {phase}: {change_text(difference)}")
    return "; ".join(parts)


def _explained(report: Report, subjects: list[str]) -> list[Finding]:
    """Why they got faster, where they did."""
    reasons: dict[Explanation, list[str]] = {}
    for subject in subjects:
        why = explanation(report, subject, ALONE)
        if why != "nothing to explain":
            reasons.setdefault(why, []).append(subject)
    found = []
    for why, names in reasons.items():
        text = f"{listed(names)} got faster after phase 1: {EXPLANATIONS[why]}."
        if why == "unknown":
            text = f"Why {listed(names)} changed cannot be said: {EXPLANATIONS[why]}."
        found.append(Finding("plain", text, RULE))
    return found


def _extreme(report: Report, workload: str) -> list[Finding]:
    words = {
        subject: change_text(difference)
        for subject in measured(report, workload, "", "late")
        if (difference := change(report, subject, workload, "", "early", "late")) is not None
    }
    if not words:
        return []
    parts = [f"{listed(names)} {text}" for text, names in _alike(words).items()]
    text = f"`{workload}`, a call late against early: {'; '.join(parts)}."
    return [Finding("plain", text, CHANGE_RULE)]


def _nearly_full(report: Report) -> list[Finding]:
    pieces = medians(measured(report, NEARLY_FULL, "", "one_piece"))
    served = medians(measured(report, NEARLY_FULL, "", "served"))
    if not pieces:
        return []
    parts = [
        f"`{name}` {percent(piece)} and {percent(served.get(name, 0.0))}"
        for name, piece in sorted(pieces.items(), key=lambda item: -item[1])
    ]
    text = (
        "With every second block freed of a card that was filled to 7/8, the largest piece that "
        "could be had, of the free memory, and requests served with 15/16 in use: "
        f"{'; '.join(parts)}."
    )
    short = [
        row.subject
        for row in report.rows
        if row.workload == NEARLY_FULL and row.outcome == "out of memory"
    ]
    if short:
        text += f" Out of memory before that: {listed(short)}."
    rule = "medians" + ("; the simulated driver's own pool is a model" if report.simulated else "")
    return [Finding("plain", text, rule)]
