"""What the study of three allocators claims, each by the figures that it stands on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from statistics import median

from vramkit.lab.allocators.experiment import ENGINES, arm_of
from vramkit.lab.allocators.memory_limited import AVERAGE, PEAK, SIZINGS
from vramkit.lab.allocators.memory_limited import NAME as MEMORY_LIMITED
from vramkit.lab.allocators.workloads import DYNAMIC, MUTEX, PREDICTABLE
from vramkit.lab.claims import (
    FACTOR,
    NOT_MEASURED,
    TOO_FEW,
    Claim,
    Judged,
    Verdict,
    judge_gain,
)
from vramkit.lab.ranking import listed, measured, medians, percent, rank
from vramkit.lab.result import Report
from vramkit.lab.samples import Difference, Spread, compare
from vramkit.report.units import bytes_text, time_text

POOL = ("rmm_pool", "fixed_pool")
ASYNC = ("rmm_async", "async")
ARENA = ("rmm_arena", "arena")
KINDS = (POOL, ASYNC, ARENA)
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


def gain_of_mutex(kind: Kind, workload: str, without: float, with_it: float) -> Judge:
    """By the study's milliseconds without and with a mutex around each item."""

    def judge(report: Report) -> Judged:
        engine = _engine(report, workload)
        free = measured(report, workload, engine, "time")
        locked = measured(report, workload, arm_of(MUTEX, engine), "time")
        name = _one_of(kind, free.keys() & locked.keys())
        sides = [("with a mutex", with_it, locked), ("without", without, free)]
        (quick, less, times), (slow, more, others) = sorted(sides, key=lambda side: side[1])
        names = f"{name} {quick}", slow
        return judge_gain(more / less - 1, times.get(name, []), others.get(name, []), names)

    return judge


def share(quantity: str, least: float, most: float, part: float = 1.0) -> Judge:
    """What so much of the quantity is of the time, with the study's pool, in the middle of all
    workloads."""

    def judge(report: Report) -> Judged:
        shares = []
        for workload in (*PREDICTABLE, *DYNAMIC):
            engine = _engine(report, workload.name, quantity)
            time = medians(measured(report, workload.name, engine, "time"))
            found = medians(measured(report, workload.name, engine, quantity))
            name = _one_of(POOL, found)
            if time.get(name) and name in found:
                shares.append(part * found[name] / time[name])
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
    outcomes, first, cases = [], 0, 0
    for workload in PREDICTABLE:
        for arm in ("", MUTEX):
            engine = _engine(report, workload.name)
            times = measured(report, workload.name, arm_of(arm, engine), "time")
            three = {name: times[name] for kind in KINDS if (name := _one_of(kind, times)) in times}
            if len(three) < 2 or _one_of(POOL, three) not in three:
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


def _three(report: Report, workload: str) -> dict[str, list[float]]:
    """The times of the study's pool, async and arena; fewer where one has none."""
    times = measured(report, workload, _engine(report, workload), "time")
    return {name: times[name] for kind in KINDS if (name := _one_of(kind, times)) in times}


def async_gains_at_most(part: float) -> Judge:
    """Over the pool, in any of the dynamic workloads."""

    def judge(report: Report) -> Judged:
        gains, clear, few = {}, [], False
        for workload in DYNAMIC:
            times = _three(report, workload.name)
            ours, pool = (times.get(_one_of(kind, times)) for kind in (ASYNC, POOL))
            if not ours or not pool:
                continue
            gains[workload.name] = Spread.of(pool).median / Spread.of(ours).median - 1
            found = compare(ours, pool)
            few |= found.verdict == "too few"
            if found.verdict == "lower" and gains[workload.name] > part:
                clear.append(workload.name)
        if not gains:
            return NOT_MEASURED
        most = max(gains, key=lambda name: gains[name])
        figures = f"{percent(gains[most], sign=True)} at most, in {most}, of {len(gains)} workloads"
        rule = f"not confirmed: above {percent(part)} somewhere, beyond the spread"
        if few:
            return Judged("cannot be said here", f"{TOO_FEW}; {figures}", rule)
        return Judged("not confirmed" if clear else "confirmed", figures, rule)

    return judge


def level(workload: str) -> Judge:
    """None of the three is behind the first one."""

    def judge(report: Report) -> Judged:
        times = _three(report, workload)
        if len(times) < len(KINDS):
            return NOT_MEASURED
        ranking = rank(times)
        figures = ", ".join(f"{name} {each:.3g} ms" for name, each in medians(times).items())
        rule = "confirmed: no difference beyond the spread between the three"
        if ranking.too_few:
            return Judged("cannot be said here", f"{TOO_FEW}; {figures}", rule)
        return Judged("not confirmed" if ranking.behind else "confirmed", figures, rule)

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
    for workload in (*PREDICTABLE, *DYNAMIC):
        engine = _engine(report, workload.name, "pair")
        found = medians(measured(report, workload.name, engine, "pair"))
        if (name := _one_of(POOL, found)) in found:
            pairs.append(found[name])
    if not pairs:
        return NOT_MEASURED
    return Judged(
        "confirmed" if median(pairs) < 1e4 else "not confirmed",
        f"{time_text(median(pairs) / 1e9)} for an allocation and its free, in the middle of "
        f"{len(pairs)} workloads, at most {time_text(max(pairs) / 1e9)}",
        "confirmed: below 10 us in the middle",
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
        if (name := _one_of(POOL, rows)) in rows:
            outcomes[sizing.arm] = rows[name]
    small, right = outcomes.get("too small"), outcomes.get("right")
    if small is None or right is None:
        return NOT_MEASURED
    held = median(right.values.get("peak_held") or [0])
    figures = f"{right.subject} of 2 GiB: {small.outcome}; of 3.6 GiB: " + (
        f"served, {bytes_text(round(held))} held" if held else right.outcome
    )
    holds = small.outcome == "out of memory" and right.outcome == "measured" and held >= PEAK
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
    row = rows.get(_one_of(ASYNC, rows))
    if row is None:
        return NOT_MEASURED
    rule = "confirmed: served, and at most twice 1 GiB held on average"
    held = row.values.get("average_held")
    if row.outcome != "measured" or not held:
        return Judged("not confirmed", f"{row.subject}: {row.outcome}", rule)
    figures = f"{row.subject} holds {bytes_text(round(median(held)))} on average"
    return Judged("confirmed" if median(held) <= 2 * AVERAGE else "not confirmed", figures, rule)


def all_within(part: float) -> Judge:
    """Not said where only the spread reaches beyond it."""

    def judge(report: Report) -> Judged:
        widest: dict[str, Difference] = {}
        for workload in (*PREDICTABLE, *DYNAMIC):
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
        apart = [each for each in widest.values() if each.relative >= part]
        verdict: Verdict = "confirmed"
        if any(each.verdict == "too few" for each in widest.values()):
            return Judged("cannot be said here", f"{TOO_FEW}; {figures}", rule)
        if any(each.verdict == "higher" for each in apart):
            verdict = "not confirmed"
        elif any(each.most >= part for each in widest.values()):
            verdict = "cannot be said here"
        return Judged(verdict, figures, rule)

    return judge


CLAIMS = (
    Claim("allocation is 2 % of the time", share("allocation", 0.01, 0.04)),
    Claim("kernels are 95 % of the time", share("kernels", 0.9, 1.0)),
    Claim("synchronisation is 3 % of the time", share("wait", 0.015, 0.06)),
    Claim("half of the allocation time is 1 % of the whole", share("allocation", 0.005, 0.02, 0.5)),
    Claim("a pool's allocation takes microseconds", a_call_takes_microseconds),
    Claim("pool, async and arena differ by less than 5 %", all_within(0.05)),
    Claim("async gains less than 3 % over the pool", async_gains_at_most(0.03)),
    Claim(
        "async is 2.1 % faster than the pool with extreme sizes",
        gain_between("extreme_sizes", ASYNC, POOL, 0.021),
    ),
    Claim(
        "arena is 7.6 % faster than async with extreme sizes",
        gain_between("extreme_sizes", ARENA, ASYNC, 0.076),
    ),
    Claim("the three are level with 32 streams", level("concurrent")),
    Claim("async is 1.8 % faster in fast churn", gain_between("churn", ASYNC, POOL, 0.018)),
    Claim(
        "arena is 6.7 % faster than the pool with interleaved streams",
        gain_between("interleaved", ARENA, POOL, 543 / 509 - 1),
    ),
    Claim(
        "arena is 37 % faster in small frequent allocations",
        gain_between("small_frequent", ARENA, POOL, 0.37),
    ),
    Claim(
        "async is 2.6 % slower in small frequent allocations",
        gain_between("small_frequent", POOL, ASYNC, 0.026),
    ),
    Claim("arena is fastest in most dynamic workloads", arena_is_mostly_first),
    Claim("the pool is best in predictable workloads", best_in_predictable),
    Claim(
        "with a mutex the pool needs half the time in simple operations",
        gain_of_mutex(POOL, "simple", 53, 26),
    ),
    Claim(
        "with a mutex async needs a third less in simple operations (47 ms, 31 ms)",
        gain_of_mutex(ASYNC, "simple", 47, 31),
    ),
    Claim(
        "with a mutex arena needs a fifth less in simple operations (43 ms, 34 ms)",
        gain_of_mutex(ARENA, "simple", 43, 34),
    ),
    Claim(
        "with a mutex the pool gains 16 % in complex operations (78 ms, 67 ms)",
        gain_of_mutex(POOL, "complex", 78, 67),
    ),
    Claim(
        "with a mutex async gains 7 % in complex operations (78 ms, 73 ms)",
        gain_of_mutex(ASYNC, "complex", 78, 73),
    ),
    Claim(
        "with a mutex arena loses 13 % in complex operations (78 ms, 88 ms)",
        gain_of_mutex(ARENA, "complex", 78, 88),
    ),
    Claim("any pool is 14 times as fast as plain cudaMalloc", fourteen_times),
    Claim("fused kernels gain 23 %", gain_of_workload("fused", "unfused", 0.23)),
    Claim(
        "how streams are waited for gains 50 %", gain_of_workload("wait_stream", "wait_device", 0.5)
    ),
    Claim(
        "on a card of 4 GB with a peak of 3.5 GB a pool must hold the peak",
        a_pool_needs_the_peak,
        of_times=False,
    ),
    Claim("on that card async holds the 1 GB that is in use on average", async_holds_the_average),
)
