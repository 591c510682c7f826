"""What the figures of a report allow to say, by stated rules."""

from __future__ import annotations

from statistics import median

from vramkit.lab.allocators.claims import CLAIMS
from vramkit.lab.allocators.experiment import ENGINES, arm_of
from vramkit.lab.allocators.memory_limited import NAME as MEMORY_LIMITED
from vramkit.lab.allocators.memory_limited import SIZINGS
from vramkit.lab.allocators.shares import SPLIT_ENGINES, kernels_text, shares
from vramkit.lab.allocators.workloads import DYNAMIC, PREDICTABLE
from vramkit.lab.claims import claim_summary, range_text, without_repeated_rules
from vramkit.lab.experiment import Finding
from vramkit.lab.ranking import (
    Ranking,
    difference_text,
    listed,
    measured,
    medians,
    percent,
    rank,
    ranking_text,
)
from vramkit.lab.result import Report
from vramkit.lab.samples import Range, compare, middle
from vramkit.lab.subjects import SUBJECTS
from vramkit.report.units import bytes_text

OURS = "pool"
SHARE_RULE = (
    "host time in calls of the allocator over the time of the workload, as the mean of its "
    "threads; medians of all repetitions, and percentiles 10 to 90"
)
RANK_RULE = (
    "a difference is one where the percentiles 10 to 90 do not overlap, the medians are more than "
    "1 % apart, and there are at least 5 repetitions"
)
ADVICE_RULE = (
    "the share that allocation takes in the workloads, at most with the spread; another gain is "
    "named where it is a difference and its near end is larger"
)
LITTLE = 0.02
"""Share of the time below which no allocator is worth a change."""


def findings(report: Report) -> list[Finding]:
    found = [_share(report)]
    found += _checksums(report)
    if report.simulated is None:
        found += _advice(report)
    else:
        found.append(
            Finding(
                "note",
                "Times are simulated: of an allocator they have the driver's calls alone, and not "
                "its own work. No allocator is called fastest, and none is recommended.",
            )
        )
    found += _held(report)
    found += _memory_limited(report)
    found += _engines_left_out(report)
    found.append(claim_summary(report, CLAIMS))
    if report.simulated is None:
        found += _fastest(report)  # many: one for each workload, arm and engine
    return without_repeated_rules(found)


def ranked_cases(*engines: str) -> list[tuple[str, str]]:
    """Workload and arm of all cases in which allocators alone are compared."""
    return [
        (workload.name, arm_of(arm, engine))
        for engine in engines or ENGINES
        for workload in (*PREDICTABLE, *DYNAMIC)
        for arm in workload.arms
    ]


def allocation_shares(report: Report, subject: str) -> dict[tuple[str, str], Range]:
    """Part of the time of each case that the subject's calls take, with the first engine that has
    such figures."""
    for engine in SPLIT_ENGINES:
        found = {}
        for case in ranked_cases(engine):
            share = shares(report, *case, "allocation").get(subject)
            if share is not None:
                found[case] = share
        if found:
            return found
    return {}


def case_text(case: tuple[str, str]) -> str:
    return f"`{case[0]}` ({case[1]})"


def _share(report: Report) -> Finding:
    found = allocation_shares(report, OURS)
    if not found:
        return Finding(
            "warning",
            f"What share of the time allocation is cannot be said: `{OURS}` has no figures.",
            SHARE_RULE,
        )
    largest = max(found, key=lambda case: found[case].median)
    words = (
        f"{range_text(middle(list(found.values())), percent)} of the time with `{OURS}`, in the "
        f"middle of {len(found)} workloads with {kernels_text([arm for _, arm in found])}, and at "
        f"most {range_text(found[largest], percent)}, in {case_text(largest)}"
    )
    if report.simulated is not None:
        words = (
            f"The driver's calls for allocation alone take {words} (simulated): nothing follows "
            "for a card."
        )
    else:
        words = f"Allocation takes {words}: calls that took no time would save that, at most."
    return Finding("plain", words, SHARE_RULE)


def _checksums(report: Report) -> list[Finding]:
    """The same work must give the same results, whoever has the memory."""
    found = []
    for case in sorted({(row.workload, row.arm) for row in report.rows}):
        sums = measured(report, *case, "checksum")
        if len({value for values in sums.values() for value in values}) > 1:
            found.append(
                Finding(
                    "bad",
                    f"{case_text(case)}: results differ between {listed(list(sums))}, or between "
                    "repetitions. An allocator has broken the work: believe none of its figures.",
                    "the sums of all results are equal",
                )
            )
    return found


def _fastest(report: Report) -> list[Finding]:
    found = []
    for case in ranked_cases():
        times = measured(report, *case, "time")
        if times:
            ranking = rank(times)
            text = f"{case_text(case)}: {ranking_text(ranking, 'is fastest')}."
            found.append(Finding("plain", text, RANK_RULE))
    return found


def _advice(report: Report) -> list[Finding]:
    """Only from the figures of a real card."""
    allocation = allocation_shares(report, OURS)
    if not allocation:
        return []
    rankings: dict[tuple[str, str], Ranking] = {
        case: rank(times)
        for case in ranked_cases()
        if OURS in (times := measured(report, *case, "time")) and len(times) > 1
    }
    behind = [case for case, ranking in rankings.items() if OURS in ranking.behind]
    if any(ranking.too_few for ranking in rankings.values()):
        return [
            Finding(
                "note",
                "Nothing is recommended: there are too few repetitions to tell the allocators "
                "apart. Measure at least 5.",
                RANK_RULE,
            )
        ]
    if behind:
        case = max(behind, key=lambda case: rankings[case].behind[OURS].relative)
        faster = [rankings[case].first, *rankings[case].level]
        return [
            Finding(
                "note",
                f"In {len(behind)} of {len(rankings)} workloads `{OURS}` is behind: at most in "
                f"{case_text(case)}, by {difference_text(rankings[case].behind[OURS])}. For a "
                f"program like that, {listed(faster)} {'are' if len(faster) > 1 else 'is'} faster.",
                RANK_RULE,
            )
        ]
    words = f"`{OURS}` is first, or not behind beyond the spread, in all {len(rankings)} workloads."
    most = max(share.most for share in allocation.values())
    if most <= LITTLE:
        words += f" Allocation takes at most {percent(most)} of the time; faster calls save no more"
        more = [
            f"{words} {range_text(gain, percent)}"
            for words, gain in _other_gains(report)
            if gain.least > most
        ]
        words += f", where {' and '.join(more)}." if more else "."
    return [Finding("good", words, ADVICE_RULE)] if rankings else []


def _other_gains(report: Report) -> list[tuple[str, Range]]:
    """What something else than the allocator saves of the time with ours, beyond the spread."""
    found = []
    for words, faster, slower in (
        ("fused kernels save", "fused", "unfused"),
        ("fewer waits save", "wait_stream", "wait_device"),
    ):
        for engine in ENGINES:
            quick, slow = (
                measured(report, each, arm_of("", engine), "time").get(OURS)
                for each in (faster, slower)
            )
            if quick and slow:
                difference = compare(quick, slow)
                if difference.verdict == "lower":
                    gain = Range(-difference.relative, -difference.most, -difference.least)
                    found.append((words, gain))
                break
    return found


def _held(report: Report) -> list[Finding]:
    """Bytes may be stated from a simulated card too: allocators do there what they do elsewhere."""
    over: dict[str, list[float]] = {}
    for case in ranked_cases():
        for name, ratio in medians(measured(report, *case, "over_in_use")).items():
            over.setdefault(name, []).append(ratio)
    if not over:
        return []
    sized = [name for name in over if name in SUBJECTS and SUBJECTS[name].needs_size]
    for name in sized:
        del over[name]
    parts = [
        f"`{name}` {median(ratios):.2f} times (at most {max(ratios):.2f})"
        for name, ratios in sorted(over.items(), key=lambda item: median(item[1]))
    ]
    said = []
    if parts:
        said.append(f"Held at the peak, of what is in use at the peak: {', '.join(parts)}.")
    if sized:
        said.append(f"{listed(sized)} take memory ahead, by the size that they are given.")
    return [Finding("plain", " ".join(said), "median and largest of all workloads")]


def _memory_limited(report: Report) -> list[Finding]:
    outcomes = []
    for sizing in SIZINGS:
        rows = [
            row
            for row in report.rows
            if (row.workload, row.arm) == (MEMORY_LIMITED, sizing.arm)
            and row.outcome in ("measured", "out of memory")
        ]
        short = [row.subject for row in rows if row.outcome == "out of memory"]
        served = [row.subject for row in rows if row.outcome == "measured"]
        if rows:
            parts = [f"{listed(served)} served" if served else "nobody served"]
            parts += [f"{listed(short)} out of memory"] if short else []
            outcomes.append(f"Size “{sizing.arm}” ({sizing.words}): {'; '.join(parts)}")
    if not outcomes:
        return []
    text = f"On a card of 4 GiB with 3.5 GiB in use at the peak. {'. '.join(outcomes)}."
    average = medians(measured(report, MEMORY_LIMITED, SIZINGS[0].arm, "average_held"))
    if OURS in average:
        text += f" Over the time, `{OURS}` held {bytes_text(round(average[OURS]))}."
    return [Finding("plain", text, "outcomes of all repetitions")]


def _engines_left_out(report: Report) -> list[Finding]:
    there = {row.arm.split(" ")[0] for row in report.rows}
    missing = [engine for engine in ("cupy", "cudf") if engine not in there]
    if not missing:
        return []
    names = {"cupy": "CuPy", "cudf": "cuDF"}
    text = f"Without kernels of {' and '.join(names[each] for each in missing)}: not installed, or"
    return [Finding("note", f"{text} not chosen. The others have modelled kernels.")]
