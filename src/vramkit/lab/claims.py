"""What a study claims, judged by the figures of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vramkit.lab.experiment import Finding
from vramkit.lab.ranking import percent
from vramkit.lab.result import Report
from vramkit.lab.samples import FEWEST, Range, Spread, compare
from vramkit.report.blocks import Table

Verdict = Literal["confirmed", "in part", "not confirmed", "cannot be said here"]
VERDICTS: tuple[Verdict, ...] = ("confirmed", "in part", "not confirmed", "cannot be said here")
FACTOR = 2.0
TOO_FEW = "too few repetitions"
GAIN_RULE = (
    "confirmed: the same direction beyond the spread, between half and twice the size; in part: "
    "another size"
)


@dataclass(frozen=True)
class Judged:
    verdict: Verdict
    figures: str
    rule: str = ""


@dataclass(frozen=True)
class Claim:
    text: str
    """As the study has it."""
    judge: Callable[[Report], Judged]
    of_times: bool = True
    """Whether it is about times, which cannot be judged where they are simulated."""

    def judged(self, report: Report) -> Judged:
        found = self.judge(report)
        if not self.of_times or found == NOT_MEASURED:
            return found
        if report.simulated is not None:
            return Judged("cannot be said here", f"simulated: {found.figures}", found.rule)
        if found.verdict == "cannot be said here":
            return found
        if fewest_repetitions(report) < FEWEST:
            return Judged("cannot be said here", f"{TOO_FEW}; {found.figures}", found.rule)
        return found


def fewest_repetitions(report: Report) -> int:
    """Of the measured rows, that of the one with fewest."""
    counts = (
        max(map(len, row.values.values()), default=0)
        for row in report.rows
        if row.outcome == "measured"
    )
    return min(counts, default=0)


def settled(text: str, figures: str, verdict: Verdict, rule: str) -> Claim:
    """A claim that was judged already: by figures that repeat exactly, or by enough repetitions."""

    def judge(report: Report) -> Judged:
        if report.simulated is None and fewest_repetitions(report) < FEWEST:
            return Judged("cannot be said here", f"{TOO_FEW}; {figures}", rule)
        return Judged(verdict, figures, rule)

    return Claim(text, judge, of_times=False)


NOT_MEASURED = Judged("cannot be said here", "not measured")


WITHIN_RULE = "with the whole spread"


def judge_range(figure: Range, least: float, most: float) -> Verdict:
    """Whether it lies between the two with its whole spread, or outside of them with it."""
    if least <= figure.least and figure.most <= most:
        return "confirmed"
    if figure.most < least or most < figure.least:
        return "not confirmed"
    return "cannot be said here"


def range_text(figure: Range, shown: Callable[[float], str]) -> str:
    """ "2.0 % (1.9 % to 2.2 %)"; the ends only where they read differently."""
    texts = [shown(each) for each in (figure.median, figure.least, figure.most)]
    return texts[0] if len(set(texts)) == 1 else f"{texts[0]} ({texts[1]} to {texts[2]})"


def judge_gain(
    claimed: float, faster: Sequence[float], slower: Sequence[float], names: tuple[str, str]
) -> Judged:
    """Whether the first takes less time: the second's is larger by the claimed part of it."""
    if not faster or not slower:
        return NOT_MEASURED
    first, second = Spread.of(faster), Spread.of(slower)
    gain = second.median / first.median - 1 if first.median else 0.0
    figures = (
        f"{names[0]} {first.median:.3g} ms, {names[1]} {second.median:.3g} ms: "
        f"{percent(gain, sign=True)} where {percent(claimed, sign=True)} is claimed"
    )
    verdict: Verdict
    match compare(faster, slower).verdict:
        case "too few":
            return Judged("cannot be said here", f"{TOO_FEW}; {figures}", GAIN_RULE)
        case "lower":
            near = claimed / FACTOR <= gain <= claimed * FACTOR
            verdict = "confirmed" if near else "in part"
        case "no difference":
            verdict, figures = "not confirmed", f"no difference beyond the spread; {figures}"
        case "higher":
            verdict = "not confirmed"
    return Judged(verdict, figures, GAIN_RULE)


def claim_summary(report: Report, claims: Sequence[Claim]) -> Finding:
    """Which of them hold; claim_table() has the figures, and those that cannot be said."""
    by_verdict: dict[Verdict, list[str]] = {verdict: [] for verdict in VERDICTS}
    for claim in claims:
        by_verdict[claim.judged(report).verdict].append(f"“{claim.text}”")
    unsaid = len(by_verdict.pop(NOT_MEASURED.verdict))
    parts = [f"{verdict}: {', '.join(texts)}" for verdict, texts in by_verdict.items() if texts]
    if unsaid:
        parts.append(f"{unsaid} of {len(claims)} cannot be said here")
    return Finding("plain", f"What the study claims: {'; '.join(parts)}.")


def claim_table(report: Report, claims: Sequence[Claim]) -> Table:
    """Those that this run did not ask about are one row."""
    rows, unasked = [], []
    for claim in claims:
        found = claim.judged(report)
        if found == NOT_MEASURED:
            unasked.append(claim.text)
        else:
            rows.append([claim.text, found.verdict, found.figures, found.rule])
    if unasked:
        rows.append(
            ["; ".join(unasked), NOT_MEASURED.verdict, NOT_MEASURED.figures, NOT_MEASURED.rule]
        )
    return Table(["claim", "verdict", "figures", "rule"], rows, "What the study claims")


def without_repeated_rules(findings: Sequence[Finding]) -> list[Finding]:
    """Each rule stands under the first finding that it made."""
    seen: set[str] = set()
    found = []
    for each in findings:
        found.append(Finding(each.tone, each.text) if each.rule in seen else each)
        seen.add(each.rule)
    return found
