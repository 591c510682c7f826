"""What the study of three allocators claims, each by the figures that it stands on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from statistics import median

from vramkit.lab.allocators.experiment import ENGINES, arm_of
from vramkit.lab.allocators.workloads import DYNAMIC, MUTEX, PREDICTABLE
from vramkit.lab.claims import FACTOR, NOT_MEASURED, Claim, Judged, Verdict, judge_gain
from vramkit.lab.ranking import listed, measured, medians, percent, rank
from vramkit.lab.result import Report

POOL = ("rmm_pool", "fixed_pool")
ASYNC = ("rmm_async", "async")
ARENA = ("rmm_arena", "arena")
"""Of what the study measured: RMM's own where it is installed, else the same method here."""

Kind = tuple[str, ...]
Judge = Callable[[Report], Judged]


def _engine(report: Report, workload: str, quantity: str = "time") -> str:
    """As near to the study as there is: real tables, then real kernels, then modelled ones."""
    for engine in reversed(ENGINES):
        if measured(report, workload, engine, quantity):
            return engine
    return ENGINES[0]


def _one_of(kind: Kind, values: Collection[str]) -> str:
    return next((name for name in kind if name in values), kind[-1])


def gain_between(workload: str, faster: Kind, slower: Kind, claimed: float) -> Judge:
    def judge(report: Report) -> Judged:
        times = measured(report, workload, _engine(report, workload), "time")
        names = _one_of(faster, times), _one_of(slower, times)
        return judge_gain(claimed, times.get(names[0], []), times.get(names[1], []), names)

    return judge


def gain_of_workload(faster: str, slower: str, claimed: float) -> Judge:
    """With the same allocator: the study's pool, else ours."""

    def judge(report: Report) -> Judged:
        quick = measured(report, faster, _engine(report, faster), "time")
        slow = measured(report, slower, _engine(report, slower), "time")
        name = _one_of((*POOL, "pool"), quick.keys() & slow.keys())
        names = f"{faster} ({name})", slower
        return judge_gain(claimed, quick.get(name, []), slow.get(name, []), names)

    return judge


def gain_of_mutex(workload: str, claimed: float) -> Judge:
    """Of the study's pool: without and with a mutex around each item."""

    def judge(report: Report) -> Judged:
        engine = _engine(report, workload)
        free = measured(report, workload, engine, "time")
        locked = measured(report, workload, arm_of(MUTEX, engine), "time")
        name = _one_of(POOL, free.keys() & locked.keys())
        names = f"{name} with a mutex", "without"
        return judge_gain(claimed, locked.get(name, []), free.get(name, []), names)

    return judge


def share(quantity: str, least: float, most: float) -> Judge:
    """What the quantity is of the time, with the study's pool, in the middle of all workloads."""

    def judge(report: Report) -> Judged:
        shares = []
        for workload in (*PREDICTABLE, *DYNAMIC):
            engine = _engine(report, workload.name, quantity)
            time = medians(measured(report, workload.name, engine, "time"))
            part = medians(measured(report, workload.name, engine, quantity))
            name = _one_of(POOL, part)
            if time.get(name) and name in part:
                shares.append(part[name] / time[name])
        if not shares:
            return NOT_MEASURED
        middle = median(shares)
        return Judged(
            "confirmed" if least <= middle <= most else "not confirmed",
            f"{percent(middle)} in the middle of {len(shares)} workloads, {percent(min(shares))} "
            f"to {percent(max(shares))}",
            f"confirmed: {percent(least)} to {percent(most)} in the middle",
        )

    return judge


def best_in_predictable(report: Report) -> Judged:
    kinds = (POOL, ASYNC, ARENA)
    outcomes, first, cases = [], 0, 0
    for workload in PREDICTABLE:
        for arm in ("", MUTEX):
            engine = _engine(report, workload.name)
            times = measured(report, workload.name, arm_of(arm, engine), "time")
            three = {name: times[name] for kind in kinds if (name := _one_of(kind, times)) in times}
            if len(three) < 2 or _one_of(POOL, three) not in three:
                continue
            ranking = rank(three)
            if ranking.too_few:
                return Judged("cannot be said here", "too few repetitions")
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
    for workload in (*PREDICTABLE, *DYNAMIC):
        times = medians(measured(report, workload.name, _engine(report, workload.name), "time"))
        pool = times.get(_one_of(POOL, times))
        if pool and "direct" in times:
            ratios[workload.name] = times["direct"] / pool
    if not ratios:
        return NOT_MEASURED
    most = max(ratios, key=lambda name: ratios[name])
    figures = (
        f"cuMemAlloc for each block takes {median(ratios.values()):.1f} times as long in the "
        f"middle of {len(ratios)} workloads, at most {ratios[most]:.1f} times, in {most}"
    )
    verdict: Verdict = "not confirmed"
    if 14 / FACTOR <= median(ratios.values()) <= 14 * FACTOR:
        verdict = "confirmed"
    elif ratios[most] >= 14 / FACTOR:
        verdict = "in part"
    rule = "confirmed: between 7 and 28 times in the middle; in part: at least 7 times somewhere"
    return Judged(verdict, figures, rule)


def all_within(part: float) -> Judge:
    def judge(report: Report) -> Judged:
        widest = {}
        for workload in (*PREDICTABLE, *DYNAMIC):
            times = medians(measured(report, workload.name, _engine(report, workload.name), "time"))
            names = [_one_of(kind, times) for kind in (POOL, ASYNC, ARENA)]
            three = [times[name] for name in names if name in times]
            if len(three) > 1:
                widest[workload.name] = max(three) / min(three) - 1
        if not widest:
            return NOT_MEASURED
        most = max(widest, key=lambda name: widest[name])
        within = sum(each < part for each in widest.values())
        verdict: Verdict = "confirmed" if within == len(widest) else "not confirmed"
        figures = f"in {within} of {len(widest)} workloads; {percent(widest[most])} in {most}"
        return Judged(verdict, figures, f"slowest over fastest below {percent(part)} everywhere")

    return judge


CLAIMS = (
    Claim("allocation is 2 % of the time", share("allocation", 0.01, 0.04)),
    Claim("kernels are 95 % of the time", share("kernels", 0.9, 1.0)),
    Claim("synchronisation is 3 % of the time", share("wait", 0.015, 0.06)),
    Claim(
        "async is 2.1 % faster than the pool with extreme sizes",
        gain_between("extreme_sizes", ASYNC, POOL, 0.021),
    ),
    Claim(
        "arena is 7.6 % faster than async with extreme sizes",
        gain_between("extreme_sizes", ARENA, ASYNC, 0.076),
    ),
    Claim("async is 1.8 % faster in fast churn", gain_between("churn", ASYNC, POOL, 0.018)),
    Claim(
        "arena is 37 % faster in small frequent allocations",
        gain_between("small_frequent", ARENA, POOL, 0.37),
    ),
    Claim("the pool is best in predictable workloads", best_in_predictable),
    Claim(
        "with a mutex the pool needs half the time in simple operations",
        gain_of_mutex("simple", 53 / 26 - 1),
    ),
    Claim("any pool is 14 times as fast as plain cudaMalloc", fourteen_times),
    Claim("fused kernels gain 23 %", gain_of_workload("fused", "unfused", 0.23)),
    Claim(
        "how streams are waited for gains 50 %", gain_of_workload("wait_stream", "wait_device", 0.5)
    ),
    Claim("pool, async and arena differ by less than 5 %", all_within(0.05)),
)
