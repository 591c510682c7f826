"""How the claims of the study of three allocators are judged, each by the figures it stands on.

A judge makes nothing of figures that are missing, and says no more than the spread allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from vramkit.lab.allocators.experiment import ENGINES, arm_of
from vramkit.lab.allocators.memory_limited import AVERAGE, PEAK, SIZINGS
from vramkit.lab.allocators.memory_limited import NAME as MEMORY_LIMITED
from vramkit.lab.allocators.shares import kernels_text, shares
from vramkit.lab.allocators.workloads import DYNAMIC, MUTEX, PREDICTABLE, Workload
from vramkit.lab.claims import (
    FACTOR,
    NOT_MEASURED,
    TOO_FEW,
    WITHIN_RULE,
    Judged,
    Verdict,
    judge_gain,
    judge_range,
    range_text,
)
from vramkit.lab.ranking import listed, measured, medians, percent, rank
from vramkit.lab.result import Report
from vramkit.lab.samples import Difference, Range, Spread, compare, middle, ratio
from vramkit.lab.stand_ins import ARENA, ASYNC, KINDS, POOL, Kind, one_of
from vramkit.report.units import bytes_text, time_text

Judge = Callable[[Report], Judged]
ALL = (*PREDICTABLE, *DYNAMIC)
CALLS = "memory_calls"
LEVEL = 0.05
"""What the study calls no difference: with a wider spread medians that are near prove nothing."""
NUMBERS = {2: "two", 3: "three"}


def _engine(report: Report, workload: str, quantity: str = "time") -> str:
    """As near to the study as there is: real tables, then real kernels, then modelled ones."""
    for engine in reversed(ENGINES):
        if measured(report, workload, engine, quantity):
            return engine
    return ENGINES[0]


def of_all(judge: Judge, workloads: Sequence[Workload], *, each: bool = False) -> Judge:
    """A claim about so many workloads is not judged by some of them. `each`: it is about every
    one, so that one of them can contradict it."""

    def judged(report: Report) -> Judged:
        found = judge(report)
        there = [
            workload
            for workload in workloads
            if measured(report, workload.name, _engine(report, workload.name), "time")
        ]
        contradicted = each and found.verdict == "not confirmed"
        if found == NOT_MEASURED or contradicted or len(there) == len(workloads):
            return found
        words = f"only {len(there)} of {len(workloads)} workloads; {found.figures}"
        return Judged("cannot be said here", words, found.rule)

    return judged


def gain_between(workload: str, faster: Kind, slower: Kind, claimed: float) -> Judge:
    def judge(report: Report) -> Judged:
        times = measured(report, workload, _engine(report, workload), "time")
        names = one_of(faster, times), one_of(slower, times)
        return judge_gain(claimed, times.get(names[0], []), times.get(names[1], []), names)

    return judge


def gain_of_workload(faster: str, slower: str, claimed: float) -> Judge:
    """With the same allocator: the study's pool, else ours."""

    def judge(report: Report) -> Judged:
        quick = measured(report, faster, _engine(report, faster), "time")
        slow = measured(report, slower, _engine(report, slower), "time")
        name = one_of((*POOL, "pool"), quick.keys() & slow.keys())
        names = f"{faster} ({name})", slower
        return judge_gain(claimed, quick.get(name, []), slow.get(name, []), names)

    return judge


def gain_of_mutex(kind: Kind, workload: str, without: float, with_it: float) -> Judge:
    """By the study's milliseconds without and with a mutex around each item."""

    def judge(report: Report) -> Judged:
        engine = _engine(report, workload)
        free = measured(report, workload, engine, "time")
        locked = measured(report, workload, arm_of(MUTEX, engine), "time")
        name = one_of(kind, free.keys() & locked.keys())
        sides = [("with a mutex", with_it, locked), ("without", without, free)]
        (quick, less, times), (slow, more, others) = sorted(sides, key=lambda side: side[1])
        names = f"{name} {quick}", slow
        return judge_gain(more / less - 1, times.get(name, []), others.get(name, []), names)

    return judge


def share(quantity: str, least: float, most: float, part: float = 1.0) -> Judge:
    """What so much of the quantity is of the time, with the study's pool, in the middle of all
    workloads."""

    def judge(report: Report) -> Judged:
        found: list[Range] = []
        engines = []
        for workload in ALL:
            engine = _engine(report, workload.name, quantity)
            by_subject = shares(report, workload.name, engine, quantity)
            if (name := one_of(POOL, by_subject)) in by_subject:
                found.append(by_subject[name].times(part))
                engines.append(engine)
        if not found:
            return NOT_MEASURED
        usual, each = middle(found), [share.median for share in found]
        return Judged(
            judge_range(usual, least, most),
            f"{range_text(usual, percent)} in the middle of {len(found)} workloads, "
            f"{percent(min(each))} to {percent(max(each))}, with {kernels_text(engines)}",
            f"confirmed: {percent(least)} to {percent(most)} in the middle, {WITHIN_RULE}",
        )

    return judge


def best_in_predictable(report: Report) -> Judged:
    outcomes, first, cases = [], 0, 0
    for workload in PREDICTABLE:
        for arm in ("", MUTEX):
            engine = _engine(report, workload.name)
            times = measured(report, workload.name, arm_of(arm, engine), "time")
            three = {name: times[name] for kind in KINDS if (name := one_of(kind, times)) in times}
            if len(three) < 2 or one_of(POOL, three) not in three:
                continue
            ranking = rank(three)
            if ranking.too_few:
                return Judged("cannot be said here", TOO_FEW)
            cases += 1
            first += ranking.first in POOL and not ranking.level
            words = f"level with {listed(ranking.level)}" if ranking.level else "first"
            outcomes.append(
                f"{workload.name}{' with a mutex' * bool(arm)}: `{ranking.first}` {words}"
            )
    if not cases:
        return NOT_MEASURED
    verdict: Verdict = "confirmed" if first == cases else "in part" if first else "not confirmed"
    rule = "confirmed: the pool is first beyond the spread in all four; in part: in some"
    return Judged(verdict, "; ".join(outcomes), rule)


def fourteen_times(report: Report) -> Judged:
    ratios = {}
    for workload in ALL:
        times = measured(report, workload.name, _engine(report, workload.name), "time")
        pool = times.get(one_of(POOL, times))
        if pool and "direct" in times:
            ratios[workload.name] = ratio(times["direct"], pool)
    if not ratios:
        return NOT_MEASURED

    def shown(times: float) -> str:
        return f"{times:.1f} times"

    most = max(ratios, key=lambda name: ratios[name].median)
    usual, least = middle(list(ratios.values())), 14 / FACTOR
    figures = (
        f"cuMemAlloc for each block takes {range_text(usual, shown)} as long in the middle of "
        f"{len(ratios)} workloads, at most {range_text(ratios[most], shown)}, in {most}"
    )
    verdict = judge_range(usual, least, 14 * FACTOR)
    if verdict == "not confirmed":
        if any(each.least >= least for each in ratios.values()):
            verdict = "in part"
        elif any(each.most >= least for each in ratios.values()):
            verdict = "cannot be said here"
    rule = (
        "confirmed: between 7 and 28 times in the middle; in part: at least 7 times somewhere; "
        f"each {WITHIN_RULE}"
    )
    return Judged(verdict, figures, rule)


def _three(report: Report, workload: str) -> dict[str, list[float]]:
    """The times of the study's pool, async and arena; fewer where one has none."""
    times = measured(report, workload, _engine(report, workload), "time")
    return {name: times[name] for kind in KINDS if (name := one_of(kind, times)) in times}


def async_gains_at_most(part: float) -> Judge:
    """Over the pool, in any of the dynamic workloads."""

    def judge(report: Report) -> Judged:
        gains, clear, few, unsure = {}, [], False, False
        for workload in DYNAMIC:
            times = _three(report, workload.name)
            ours, pool = (times.get(one_of(kind, times)) for kind in (ASYNC, POOL))
            if not ours or not pool:
                continue
            least = Spread.of(ours).median
            if not least:
                continue
            gains[workload.name] = Spread.of(pool).median / least - 1
            found = compare(ours, pool)
            few |= found.verdict == "too few"
            unsure |= ratio(pool, ours).most - 1 > part
            if found.verdict == "lower" and ratio(pool, ours).least - 1 > part:
                clear.append(workload.name)
        if not gains:
            return NOT_MEASURED
        most = max(gains, key=lambda name: gains[name])
        figures = f"{percent(gains[most], sign=True)} at most, in {most}, of {len(gains)} workloads"
        rule = (
            f"confirmed: below {percent(part)} everywhere, {WITHIN_RULE}; not confirmed: above it "
            "somewhere, beyond the spread"
        )
        if few:
            return Judged("cannot be said here", f"{TOO_FEW}; {figures}", rule)
        verdict: Verdict = "not confirmed" if clear else "confirmed"
        if unsure and not clear:
            verdict = "cannot be said here"
        return Judged(verdict, figures, rule)

    return judge


def level(workload: str, kinds: Sequence[Kind] = KINDS) -> Judge:
    """None of them is behind the first one, nor may be by more than LEVEL."""

    def judge(report: Report) -> Judged:
        times = _three(report, workload)
        names = [one_of(kind, times) for kind in kinds]
        if any(name not in times for name in names):
            return NOT_MEASURED
        times = {name: times[name] for name in names}
        ranking = rank(times)
        figures = ", ".join(f"{name} {each:.3g} ms" for name, each in medians(times).items())
        rule = (
            f"confirmed: no difference beyond the spread between the {NUMBERS[len(kinds)]}, and a "
            f"spread that allows less than {percent(LEVEL)}"
        )
        if ranking.too_few:
            return Judged("cannot be said here", f"{TOO_FEW}; {figures}", rule)
        if ranking.behind:
            return Judged("not confirmed", figures, rule)
        most = max(compare(each, times[ranking.first]).most for each in times.values())
        if most >= LEVEL:
            words = f"the spread allows {percent(most)}; {figures}"
            return Judged("cannot be said here", words, rule)
        return Judged("confirmed", figures, rule)

    return judge


def arena_is_mostly_first(report: Report) -> Judged:
    """The study's table has it first in four of five."""
    first, outcomes = 0, []
    for workload in DYNAMIC:
        times = _three(report, workload.name)
        if len(times) < len(KINDS):
            continue
        ranking = rank(times)
        if ranking.too_few:
            return Judged("cannot be said here", TOO_FEW)
        alone = ranking.first in ARENA and not ranking.level
        first += alone
        tied = listed([ranking.first, *ranking.level])
        outcomes.append(f"{workload.name}: {tied}{'' if len(ranking.level) else ' first'}")
    if not outcomes:
        return NOT_MEASURED
    verdict: Verdict = "not confirmed"
    if 2 * first > len(outcomes):
        verdict = "confirmed"
    elif first:
        verdict = "in part"
    rule = "confirmed: first beyond the spread in most dynamic workloads; in part: in some"
    return Judged(verdict, "; ".join(outcomes), rule)


def a_call_takes_microseconds(report: Report) -> Judged:
    """Of the study's pool: "in microseconds" is up to ten of them."""
    pairs = []
    for workload in ALL:
        engine = _engine(report, workload.name, "pair")
        found = measured(report, workload.name, engine, "pair")
        if (name := one_of(POOL, found)) in found:
            pairs.append(Range.of(found[name]).times(1e-9))
    if not pairs:
        return NOT_MEASURED
    usual, most = middle(pairs), max(each.median for each in pairs)
    return Judged(
        judge_range(usual, 0, 1e-5),
        f"{range_text(usual, time_text)} for an allocation and its free, in the middle of "
        f"{len(pairs)} workloads, at most {time_text(most)}",
        f"confirmed: below 10 us in the middle, {WITHIN_RULE}",
    )


def a_pool_makes_no_call(report: Report) -> Judged:
    """In steady rounds; the others are named beside it. The count is exact where there is one."""
    counts: dict[str, list[float]] = {}
    for workload in ALL:
        found = measured(report, workload.name, _engine(report, workload.name, CALLS), CALLS)
        for kind in (POOL, ASYNC, ARENA, ("pool",)):
            if (name := one_of(kind, found)) in found:
                counts.setdefault(name, []).append(max(found[name]))
    pool = next((counts[name] for name in POOL if name in counts), None)
    if pool is None:
        return NOT_MEASURED
    figures = ", ".join(f"{name} {sum(most):,.0f}" for name, most in counts.items())
    return Judged(
        "not confirmed" if any(pool) else "confirmed",
        f"calls for memory in the steady rounds of {len(pool)} workloads: {figures}",
        "confirmed: none in any of them",
    )


def a_pool_needs_the_peak(report: Report) -> Judged:
    """On the small card: too small a pool runs out of memory, one as large as the peak does not."""
    outcomes = {}
    for sizing in SIZINGS:
        rows = {
            row.subject: row
            for row in report.rows
            if (row.workload, row.arm) == (MEMORY_LIMITED, sizing.arm)
            and row.outcome in ("measured", "out of memory")
        }
        if (name := one_of(POOL, rows)) in rows:
            outcomes[sizing.arm] = rows[name]
    small, right = outcomes.get("too small"), outcomes.get("right")
    if small is None or right is None:
        return NOT_MEASURED
    held = Range.of(right.values.get("peak_held") or [0])
    figures = f"{right.subject} of 2 GiB: {small.outcome}; of 3.6 GiB: " + (
        f"served, {bytes_text(round(held.median))} held" if held.median else right.outcome
    )
    holds = small.outcome == "out of memory" and right.outcome == "measured" and held.least >= PEAK
    rule = "confirmed: of 2 GiB it runs out of memory, of 3.6 GiB it is served and holds the peak"
    return Judged("confirmed" if holds else "not confirmed", figures, rule)


def async_holds_the_average(report: Report) -> Judged:
    """On the small card; up to twice what is in use on average."""
    rows = {
        row.subject: row
        for row in report.rows
        if (row.workload, row.arm) == (MEMORY_LIMITED, SIZINGS[0].arm)
        and row.outcome in ("measured", "out of memory")
    }
    row = rows.get(one_of(ASYNC, rows))
    if row is None:
        return NOT_MEASURED
    rule = f"confirmed: served, and at most twice 1 GiB held on average, {WITHIN_RULE}"
    held = row.values.get("average_held")
    if row.outcome != "measured" or not held:
        return Judged("not confirmed", f"{row.subject}: {row.outcome}", rule)
    average = Range.of([round(each) for each in held])
    figures = f"{row.subject} holds {range_text(average, bytes_text)} on average"
    return Judged(judge_range(average, 0, 2 * AVERAGE), figures, rule)


def all_within(part: float) -> Judge:
    """Not said where only the spread reaches beyond it."""

    def judge(report: Report) -> Judged:
        widest: dict[str, Difference] = {}
        for workload in ALL:
            three = sorted(_three(report, workload.name).values(), key=median)
            if len(three) > 1:
                widest[workload.name] = compare(three[-1], three[0])
        if not widest:
            return NOT_MEASURED
        most = max(widest, key=lambda name: widest[name].relative)
        within = sum(each.relative < part for each in widest.values())
        figures = f"in {within} of {len(widest)} workloads; {percent(widest[most].relative)} "
        figures += f"in {most}"
        rule = f"confirmed: slowest over fastest below {percent(part)} everywhere, with the spread"
        verdict: Verdict = "confirmed"
        if any(each.verdict == "too few" for each in widest.values()):
            return Judged("cannot be said here", f"{TOO_FEW}; {figures}", rule)
        if any(each.verdict == "higher" and each.least >= part for each in widest.values()):
            verdict = "not confirmed"
        elif any(each.most >= part for each in widest.values()):
            verdict = "cannot be said here"
        return Judged(verdict, figures, rule)

    return judge
