"""What is said of allocators, from figures with known answers."""

from __future__ import annotations

import pytest

from tests.lab.allocator_reports import ENOUGH, FEW, around, lacking, made
from vramkit.lab.allocators import ALLOCATORS
from vramkit.lab.allocators.claims import CLAIMS
from vramkit.lab.allocators.memory_limited import NAME as MEMORY_LIMITED
from vramkit.lab.claims import Judged, Verdict
from vramkit.lab.ranking import rank
from vramkit.lab.result import Report, Row

NATIVE = "native"
SEED_000 = {
    ("simple", NATIVE): (53.0, 47.0, 43.0),
    ("simple", "native mutex"): (26.0, 31.0, 34.0),
    ("complex", NATIVE): (78.0, 78.0, 78.0),
    ("complex", "native mutex"): (67.0, 73.0, 88.0),
    ("extreme_sizes", NATIVE): (2327.0, 2279.0, 2154.0),
    ("concurrent", NATIVE): (161.0, 162.0, 160.0),
    ("churn", NATIVE): (718.0, 705.0, 725.0),
    ("interleaved", NATIVE): (543.0, 544.0, 509.0),
    ("small_frequent", NATIVE): (114.0, 117.0, 83.0),
}
"""The study's own milliseconds: of its pool, async and arena."""


def study(
    *, simulated: str | None = None, count: int = ENOUGH, ours: float = 1.0, direct: float = 14.0
) -> Report:
    """A card on which everything is as the study has it. `ours`: of the study's pool's time."""
    rows = {}
    for (workload, arm), times in SEED_000.items():
        named = dict(zip(("rmm_pool", "rmm_async", "rmm_arena"), times, strict=True))
        named |= {"pool": times[0] * ours, "direct": times[0] * direct}
        for subject, time in named.items():
            rows[workload, arm, subject] = {
                "time": around(time, count=count),
                "allocation": around(time * 0.02, count=count),
                "kernels": around(time * 0.95, count=count),
                "wait": around(time * 0.03, count=count),
                "over_in_use": around(1.5, count=count),
                "pair": around(2000.0, count=count),
            }
            if simulated:  # which alone counts them
                none = subject == "rmm_pool"
                rows[workload, arm, subject]["memory_calls"] = [0.0 if none else 40.0] * count
    more = {"unfused": 123.0, "fused": 100.0, "wait_device": 150.0, "wait_stream": 100.0}
    for workload, time in more.items():
        rows[workload, NATIVE, "rmm_pool"] = {"time": around(time, count=count)}
    small_card = {("right", "rmm_pool"): 3.6, ("default", "rmm_async"): 1.0}
    for (arm, subject), held in small_card.items():
        values = around(held * 2**30, count=count)
        rows[MEMORY_LIMITED, arm, subject] = {"peak_held": values, "average_held": values}
    report = made(ALLOCATORS, rows, simulated=simulated)
    report.rows.append(lacking(MEMORY_LIMITED, "too small", "rmm_pool", "out of memory"))
    return report


COUNTED = (
    "on a card of 4 GB with a peak of 3.5 GB a pool must hold the peak",
    "the pool makes no GPU memory call in the steady state",
)


def judged(report: Report) -> dict[str, Judged]:
    return {claim.text: claim.judged(report) for claim in CLAIMS}


def texts(report: Report) -> str:
    return "\n".join(each.text for each in ALLOCATORS.findings(report))


def test_the_studys_own_figures_confirm_what_they_can_and_no_more() -> None:
    found = judged(study())
    assert {text: each.verdict for text, each in found.items()} == {
        "allocation is 2 % of the time": "confirmed",
        "kernels are 95 % of the time": "confirmed",
        "synchronisation is 3 % of the time": "confirmed",
        "half of the allocation time is 1 % of the whole": "confirmed",
        "a pool's allocation takes microseconds": "confirmed",
        # a card does not tell; see below
        "the pool makes no GPU memory call in the steady state": "cannot be said here",
        # its own figures contradict it
        "pool, async and arena differ by less than 5 %": "not confirmed",
        "async gains less than 3 % over the pool": "confirmed",
        "async is 2.1 % faster than the pool with extreme sizes": "confirmed",
        # 5.8 % by its own figures
        "arena is 7.6 % faster than async with extreme sizes": "confirmed",
        "pool and async are level with interleaved streams": "confirmed",
        # 1.3 % from 160 to 162 ms, which is a difference where nothing scatters
        "the three are level with 32 streams": "not confirmed",
        "async is 1.8 % faster in fast churn": "confirmed",
        "arena is 6.7 % faster than the pool with interleaved streams": "confirmed",
        "arena is 37 % faster in small frequent allocations": "confirmed",
        "async is 2.6 % slower in small frequent allocations": "confirmed",
        "arena is fastest in most dynamic workloads": "confirmed",
        # its own table: the pool is first with a mutex only
        "the pool is best in predictable workloads": "in part",
        "with a mutex the pool needs half the time in simple operations": "confirmed",
        "with a mutex async needs a third less in simple operations (47 ms, 31 ms)": "confirmed",
        "with a mutex arena needs a fifth less in simple operations (43 ms, 34 ms)": "confirmed",
        "with a mutex the pool gains 16 % in complex operations (78 ms, 67 ms)": "confirmed",
        "with a mutex async gains 7 % in complex operations (78 ms, 73 ms)": "confirmed",
        "with a mutex arena loses 13 % in complex operations (78 ms, 88 ms)": "confirmed",
        "any pool is 14 times as fast as plain cudaMalloc": "confirmed",
        "fused kernels gain 23 %": "confirmed",
        "how streams are waited for gains 50 %": "confirmed",
        "on a card of 4 GB with a peak of 3.5 GB a pool must hold the peak": "confirmed",
        "on that card async holds the 1 GB that is in use on average": "confirmed",
    }
    arena = found["arena is 37 % faster in small frequent allocations"].figures
    assert "rmm_arena 83 ms, rmm_pool 114 ms: +37.3 %" in arena


def test_nothing_is_judged_or_recommended_from_simulated_times() -> None:
    report = study(simulated="h200")
    found = judged(report)
    for text in COUNTED:  # bytes and calls are counted there as on a card
        assert found.pop(text).verdict == "confirmed"
    assert {each.verdict for each in found.values()} == {"cannot be said here"}
    assert all("simulated" in each.figures for each in found.values())
    said = texts(report)
    assert "is fastest" not in said and "is faster" not in said and "save" not in said
    assert "(simulated): nothing follows for a card" in said
    assert "Held at the peak" in said  # bytes may be stated


def test_too_few_repetitions_are_said_to_be_too_few() -> None:
    report = study(count=FEW)
    found = judged(report)
    for text in COUNTED:
        found.pop(text)
    for each in found.values():
        assert each.verdict == "cannot be said here"
        assert "too few" in each.figures
    assert "Nothing is recommended" in texts(report)


def test_the_report_opens_with_the_share_that_allocation_has() -> None:
    first = ALLOCATORS.findings(study())[0]
    assert first.text.startswith("Allocation takes 2.0 % of the time with `pool`")
    assert "calls that took no time would save that, at most" in first.text


def test_a_report_without_figures_of_ours_says_that_the_share_is_unknown() -> None:
    report = study()
    report.rows = [row for row in report.rows if row.subject != "pool"]
    assert ALLOCATORS.findings(report)[0].tone == "warning"
    ALLOCATORS.blocks(report)


def test_a_pool_that_is_first_everywhere_is_recommended() -> None:
    said = texts(study(ours=0.5))
    assert "`pool` is first, or not behind beyond the spread, in all 9 workloads." in said
    assert "`pool` is fastest" in said


def test_a_pool_that_is_behind_is_said_to_be() -> None:
    said = texts(study(ours=2.0))
    assert "In 9 of 9 workloads `pool` is behind" in said
    assert "is first, or not behind" not in said


def test_how_far_ours_is_behind_is_told_with_its_spread_where_it_is_most() -> None:
    times = {"churn": (110.0, 100.0, 100.5), "concurrent": (130.0, 100.0, 131.0)}
    rows = {
        (workload, NATIVE, name): {"time": around(time, 0.02), "allocation": around(1.0)}
        for workload, row in times.items()
        for name, time in zip(("pool", "rmm_pool", "rmm_async"), row, strict=True)
    }
    said = texts(made(ALLOCATORS, rows))
    assert "in `concurrent` (native), by 30.0 % (25.9 % to 34.2 %)." in said
    assert "For a program like that, `rmm_pool` is faster." in said
    del rows["concurrent", NATIVE, "pool"]
    said = texts(made(ALLOCATORS, rows))
    assert (
        "by 10.0 % (6.5 % to 13.6 %)" in said and "`rmm_pool` and `rmm_async` are faster." in said
    )


def test_ours_that_is_behind_within_the_spread_is_not_behind() -> None:
    rows = {
        ("churn", NATIVE, name): {"time": around(time, 0.2), "allocation": around(0.1)}
        for name, time in {"pool": 110.0, "rmm_pool": 100.0}.items()
    }
    said = texts(made(ALLOCATORS, rows))
    assert "`pool` is first, or not behind beyond the spread" in said and "is behind" not in said


def test_allocation_is_not_called_little_where_its_spread_is_more_than_that() -> None:
    report = study(ours=0.5)
    for each in report.rows:
        if each.subject == "pool":
            times = each.values["time"]
            each.values["allocation"] = [
                time * share for time, share in zip(times, around(0.018, 0.3), strict=True)
            ]
    said = texts(report)
    assert "Allocation takes 1.8 % (1.4 % to 2.2 %) of the time with `pool`" in said
    assert "`pool` is first, or not behind" in said and "Allocation takes at most" not in said


def test_figures_that_overlap_are_no_difference() -> None:
    rows = {
        ("churn", NATIVE, name): {"time": around(time, 0.2), "allocation": around(0.1)}
        for name, time in {"pool": 100.0, "rmm_pool": 103.0, "rmm_async": 101.0}.items()
    }
    report = made(ALLOCATORS, rows)
    assert "`churn` (native): no difference beyond the spread between" in texts(report)
    claim = judged(report)["async is 1.8 % faster in fast churn"]
    assert claim.verdict == "not confirmed"
    assert "no difference beyond the spread" in claim.figures


def test_the_other_direction_is_not_confirmed_and_another_size_only_in_part() -> None:
    def churn(pool: float, other: float) -> Verdict:
        rows = {
            ("churn", NATIVE, "rmm_pool"): {"time": around(pool)},
            ("churn", NATIVE, "rmm_async"): {"time": around(other)},
        }
        return judged(made(ALLOCATORS, rows))["async is 1.8 % faster in fast churn"].verdict

    assert churn(100.0, 110.0) == "not confirmed"
    assert churn(105.0, 100.0) == "in part"
    assert churn(100.0, 98.9) == "confirmed"
    assert churn(101.8, 100.0) == "confirmed"


def test_a_gain_of_less_than_half_the_claimed_one_is_a_part() -> None:
    report = study()
    for each in report.rows:
        if each.workload == "unfused":
            each.values["time"] = around(105.0)
    assert judged(report)["fused kernels gain 23 %"].verdict == "in part"


def test_a_pool_that_is_far_from_fourteen_times_is_a_part_where_it_comes_near_somewhere() -> None:
    text = "any pool is 14 times as fast as plain cudaMalloc"

    def found(usual: float, in_churn: float, spread: float = 0.001) -> Verdict:
        report = study(direct=usual)
        for each in report.rows:
            if (each.workload, each.subject) == ("churn", "direct"):
                each.values["time"] = around(718.0 * in_churn, spread)
        return judged(report)[text].verdict

    assert [found(2, 8), found(2, 6), found(14, 20), found(40, 40)] == [
        "in part",
        "not confirmed",
        "confirmed",
        "in part",
    ]
    assert found(2, 8, 0.3) == found(2, 6, 0.3) == "cannot be said here"


@pytest.mark.parametrize(
    ("direct", "spread", "verdict"),
    [
        (1.0, 0.2, "not confirmed"),  # no difference
        (6.5, 0.001, "not confirmed"),
        (6.5, 0.2, "cannot be said here"),
        (7.5, 0.2, "cannot be said here"),
        (7.5, 0.001, "confirmed"),
        (14.0, 0.2, "confirmed"),
        (30.0, 0.2, "cannot be said here"),
        (60.0, 0.2, "in part"),
    ],
)
def test_a_factor_is_judged_with_its_spread(direct: float, spread: float, verdict: Verdict) -> None:
    report = study(direct=direct)
    for each in report.rows:
        times = each.values.get("time")
        if times:
            each.values["time"] = around(times[2], spread)
    found = judged(report)["any pool is 14 times as fast as plain cudaMalloc"]
    assert found.verdict == verdict
    assert (" times to " in found.figures) == (spread > 0.1)


@pytest.mark.parametrize(
    ("share", "spread", "verdict"),
    [
        (0.02, 0.3, "confirmed"),
        (0.038, 0.001, "confirmed"),
        (0.038, 0.3, "cannot be said here"),
        (0.042, 0.3, "cannot be said here"),
        (0.08, 0.3, "not confirmed"),
    ],
)
def test_a_share_is_judged_with_its_spread(share: float, spread: float, verdict: Verdict) -> None:
    report = study()
    for each in report.rows:
        if "allocation" in each.values:
            times, shares = each.values["time"], around(share, spread)
            parts = zip(times, shares, strict=True)
            each.values["allocation"] = [time * part for time, part in parts]
    assert judged(report)["allocation is 2 % of the time"].verdict == verdict


@pytest.mark.parametrize(
    ("pair", "spread", "verdict"),
    [
        (9_000.0, 0.001, "confirmed"),
        (9_000.0, 0.3, "cannot be said here"),
        (11_000.0, 0.3, "cannot be said here"),
        (11_000.0, 0.001, "not confirmed"),
    ],
)
def test_microseconds_are_judged_with_their_spread(
    pair: float, spread: float, verdict: Verdict
) -> None:
    report = study()
    for each in report.rows:
        if "pair" in each.values:
            each.values["pair"] = around(pair, spread)
    assert judged(report)["a pool's allocation takes microseconds"].verdict == verdict


def test_one_row_with_few_repetitions_keeps_claims_about_all_open() -> None:
    report = study()
    report.rows[0].values = {name: each[:1] for name, each in report.rows[0].values.items()}
    for text in (
        "kernels are 95 % of the time",
        "any pool is 14 times as fast as plain cudaMalloc",
    ):
        assert judged(report)[text].verdict == "cannot be said here"


def test_nothing_is_recommended_where_one_workload_has_too_few_repetitions() -> None:
    report = study(ours=0.5)
    for each in report.rows:
        if each.workload == "churn":
            each.values = {name: values[:FEW] for name, values in each.values.items()}
    assert "Nothing is recommended" in texts(report)


def test_another_allocator_is_called_little_only_where_it_is_little_everywhere() -> None:
    report = study(ours=0.5)
    for each in report.rows:
        each.values["allocation"] = [value / 2 for value in each.values.get("allocation", [])]
    words = "Allocation takes at most 1.0 % of the time; faster calls save no more"
    assert f"{words}." in texts(report)
    more = {"unfused": 125.0, "fused": 100.0, "wait_device": 100.0, "wait_stream": 100.5}
    for workload, time in more.items():
        report.rows.append(Row(workload, "pool", NATIVE, {"time": around(time)}, "measured"))
    assert f"{words}, where fused kernels save 20.0 % (19.9 % to 20.1 %)." in texts(report)
    for each in report.rows:
        if (each.workload, each.subject) == ("churn", "pool"):
            each.values["allocation"] = each.values["time"]
    assert "Allocation takes at most" not in texts(report)


@pytest.mark.parametrize(
    ("fused", "spread", "said"),
    [
        (80.0, 0.001, True),
        (98.5, 0.001, False),  # less than allocation takes
        (80.0, 0.5, False),  # no difference beyond the spread
        (120.0, 0.001, False),
    ],
)
def test_another_gain_is_named_where_it_is_one_and_larger_than_what_allocation_takes(
    fused: float, spread: float, said: bool
) -> None:
    report = study(ours=0.5)
    for each in report.rows:
        each.values["allocation"] = [0.9 * value for value in each.values.get("allocation", [])]
    for workload, time in {"unfused": 100.0, "fused": fused}.items():
        times = {"time": around(time, spread)}
        report.rows.append(Row(workload, "pool", NATIVE, times, "measured"))
    assert ("fused kernels save" in texts(report)) == said


def test_a_share_far_from_the_claimed_one_is_not_confirmed() -> None:
    report = study()
    for row in report.rows:
        row.values["wait"] = [3 * value for value in row.values.get("wait", [])]
        row.values["allocation"] = [value / 3 for value in row.values.get("allocation", [])]
    found = judged(report)
    assert found["synchronisation is 3 % of the time"].verdict == "not confirmed"
    assert found["allocation is 2 % of the time"].verdict == "not confirmed"
    assert found["kernels are 95 % of the time"].verdict == "confirmed"


def test_half_of_a_share_is_judged_by_half_of_it() -> None:
    report = study()
    for row in report.rows:
        row.values["allocation"] = [1.5 * value for value in row.values.get("allocation", [])]
    found = judged(report)["half of the allocation time is 1 % of the whole"]
    assert found.verdict == "confirmed" and found.figures.startswith("1.5 % in the middle of 7")


@pytest.mark.parametrize(
    ("first_in", "verdict"),
    [(5, "confirmed"), (3, "confirmed"), (2, "in part"), (0, "not confirmed")],
)
def test_most_is_more_than_half_of_the_dynamic_workloads(first_in: int, verdict: Verdict) -> None:
    dynamic = ("extreme_sizes", "concurrent", "churn", "interleaved", "small_frequent")
    report = of_three((100.0, 100.0, 100.0), 0.001, *dynamic)
    for row in report.rows:
        if row.subject == "rmm_arena" and row.workload in dynamic[:first_in]:
            row.values["time"] = around(90.0)
    assert judged(report)["arena is fastest in most dynamic workloads"].verdict == verdict


def test_what_was_not_measured_is_not_judged() -> None:
    report = made(ALLOCATORS, {})
    assert {each.figures for each in judged(report).values()} == {"not measured"}
    ALLOCATORS.findings(report)
    ALLOCATORS.blocks(report)


THREE = ("rmm_pool", "rmm_async", "rmm_arena")


def of_three(times: tuple[float, float, float], spread: float, *workloads: str) -> Report:
    """Milliseconds of the study's pool, async and arena; in all workloads if none is named."""
    rows = {
        (workload, NATIVE, name): {"time": around(time, spread)}
        for workload in workloads or dict.fromkeys(workload for workload, _ in SEED_000)
        for name, time in zip(THREE, times, strict=True)
    }
    return made(ALLOCATORS, rows)


@pytest.mark.parametrize(
    ("times", "spread", "verdict"),
    [
        ((100.0, 101.0, 102.0), 0.001, "confirmed"),
        ((100.0, 101.0, 106.0), 0.001, "not confirmed"),
        # The medians are near each other, or apart, and what repetitions scatter is more than that.
        ((100.0, 101.0, 102.0), 0.1, "cannot be said here"),
        ((100.0, 101.0, 106.0), 0.1, "cannot be said here"),
        # Apart for certain, and 5 % within what scatters.
        ((100.0, 101.0, 106.0), 0.01, "cannot be said here"),
    ],
)
def test_no_more_is_said_of_small_differences_than_the_spread_allows(
    times: tuple[float, float, float], spread: float, verdict: Verdict
) -> None:
    found = judged(of_three(times, spread))
    assert found["pool, async and arena differ by less than 5 %"].verdict == verdict


def test_a_gain_of_async_above_the_claimed_one_is_seen_only_beyond_the_spread() -> None:
    text = "async gains less than 3 % over the pool"
    assert judged(of_three((105.0, 100.0, 100.0), 0.001))[text].verdict == "not confirmed"
    assert judged(of_three((105.0, 100.0, 100.0), 0.1))[text].verdict == "cannot be said here"
    assert judged(of_three((100.0, 100.0, 100.0), 0.1))[text].verdict == "cannot be said here"
    assert judged(of_three((104.0, 100.0, 100.0), 0.01))[text].verdict == "cannot be said here"
    assert judged(of_three((90.0, 100.0, 100.0), 0.02))[text].verdict == "confirmed"
    assert judged(of_three((102.0, 100.0, 100.0), 0.001))[text].verdict == "confirmed"


def test_a_claim_about_all_workloads_is_not_confirmed_by_some() -> None:
    near = judged(of_three((100.0, 101.0, 102.0), 0.001, "churn", "simple"))
    all_near = near["pool, async and arena differ by less than 5 %"]
    assert all_near.verdict == "cannot be said here"
    assert all_near.figures.startswith("only 2 of 7 workloads")
    assert near["the pool is best in predictable workloads"].verdict == "cannot be said here"
    # One that contradicts it is enough.
    far = judged(of_three((100.0, 101.0, 142.0), 0.001, "churn"))
    assert far["pool, async and arena differ by less than 5 %"].verdict == "not confirmed"
    assert far["arena is fastest in most dynamic workloads"].verdict == "cannot be said here"


def test_three_are_level_within_the_spread() -> None:
    text = "the three are level with 32 streams"
    assert judged(of_three((161.0, 162.0, 160.0), 0.02))[text].verdict == "confirmed"
    apart = judged(of_three((161.0, 262.0, 160.0), 0.02))[text]
    assert apart.verdict == "not confirmed" and "rmm_async 262 ms" in apart.figures


@pytest.mark.parametrize(
    ("small", "right", "verdict"),
    [
        ("out of memory", 3.6, "confirmed"),
        ("out of memory", 1.0, "not confirmed"),
        ("measured", 3.6, "not confirmed"),
    ],
)
def test_a_pool_must_hold_the_peak_if_less_is_too_little(
    small: str, right: float, verdict: Verdict
) -> None:
    held = {"peak_held": around(right * 2**30)}
    report = made(ALLOCATORS, {(MEMORY_LIMITED, "right", "rmm_pool"): held}, simulated="h200")
    report.rows.append(lacking(MEMORY_LIMITED, "too small", "rmm_pool", small))
    text = "on a card of 4 GB with a peak of 3.5 GB a pool must hold the peak"
    assert judged(report)[text].verdict == verdict


def test_a_pool_that_calls_the_driver_in_one_workload_contradicts_the_claim() -> None:
    report = study(simulated="h200")
    text = "the pool makes no GPU memory call in the steady state"
    figures = judged(report)[text].figures
    assert figures.endswith("of 7 workloads: rmm_pool 0, rmm_async 280, rmm_arena 280, pool 280")
    row = report.row("churn", "rmm_pool", NATIVE)
    assert row is not None
    row.values["memory_calls"][-1] = 1.0
    assert judged(report)[text].verdict == "not confirmed"
    report.rows = [each for each in report.rows if each.workload != "churn"]
    assert judged(report)[text].verdict == "cannot be said here"


def test_only_the_two_that_a_claim_names_are_compared() -> None:
    text = "pool and async are level with interleaved streams"
    report = of_three((100.0, 100.5, 50.0), 0.001, "interleaved")
    assert judged(report)[text].verdict == "confirmed"
    report = of_three((100.0, 103.0, 50.0), 0.001, "interleaved")
    assert judged(report)[text].verdict == "not confirmed"
    report = of_three((100.0, 103.0, 50.0), 0.02, "interleaved")
    assert judged(report)[text].verdict == "cannot be said here"
    assert "the spread allows 6.3 %" in judged(report)[text].figures


def test_async_that_holds_more_than_the_average_or_runs_out_does_not_confirm_it() -> None:
    text = "on that card async holds the 1 GB that is in use on average"
    held = {"average_held": around(2.5 * 2**30)}
    more = made(ALLOCATORS, {(MEMORY_LIMITED, "default", "rmm_async"): held})
    assert judged(more)[text].verdict == "not confirmed"
    held["average_held"] = around(1.9 * 2**30, 0.2)
    scattered = made(ALLOCATORS, {(MEMORY_LIMITED, "default", "rmm_async"): held})
    assert judged(scattered)[text].verdict == "cannot be said here"
    report = study()
    for each in report.rows:
        if (each.workload, each.subject) == (MEMORY_LIMITED, "rmm_async"):
            each.values, each.outcome = {}, "out of memory"
    assert judged(report)[text].verdict == "not confirmed"


def test_claims_that_cannot_be_said_are_counted_not_listed() -> None:
    said = ALLOCATORS.findings(study(simulated="h200"))[-1].text
    assert said.endswith(f"{len(CLAIMS) - 2} of {len(CLAIMS)} cannot be said here.")
    assert "“on a card of 4 GB" in said and "in fast churn" not in said


def test_what_takes_memory_ahead_has_no_ratio_of_held_to_in_use() -> None:
    rows = {
        ("churn", NATIVE, name): {"over_in_use": around(ratio)}
        for name, ratio in {"pool": 1.1, "fixed_pool": 550.0}.items()
    }
    said = texts(made(ALLOCATORS, rows, simulated="h200"))
    assert "`pool` 1.10 times" in said and "550" not in said
    assert "`fixed_pool` take memory ahead" in said


def test_real_kernels_are_judged_before_modelled_ones() -> None:
    rows = {
        ("churn", arm, name): {"time": around(time)}
        for arm, times in {NATIVE: (100.0, 200.0), "cupy": (101.8, 100.0)}.items()
        for name, time in zip(("rmm_pool", "rmm_async"), times, strict=True)
    }
    found = judged(made(ALLOCATORS, rows))["async is 1.8 % faster in fast churn"]
    assert found.verdict == "confirmed"


def test_results_that_differ_between_allocators_are_called_broken() -> None:
    rows = {
        ("churn", "cupy", name): {"time": around(1.0), "checksum": [value] * ENOUGH}
        for name, value in {"pool": 7.0, "direct": 7.0}.items()
    }
    report = made(ALLOCATORS, rows)
    assert "results differ" not in texts(report)
    report.rows[1].values["checksum"][-1] = 8.0
    bad = [each for each in ALLOCATORS.findings(report) if each.tone == "bad"]
    assert len(bad) == 1 and "`churn` (cupy): results differ" in bad[0].text


def test_who_ran_out_of_memory_on_the_small_card_is_said_for_each_size() -> None:
    rows = {
        (MEMORY_LIMITED, "default", "pool"): {"time": around(1.0), "average_held": around(2.0**30)},
        (MEMORY_LIMITED, "right", "rmm_pool"): {"time": around(1.0)},
    }
    report = made(ALLOCATORS, rows, simulated="h200")
    report.rows.append(lacking(MEMORY_LIMITED, "too small", "rmm_pool", "out of memory"))
    report.rows.append(lacking(MEMORY_LIMITED, "right", "pool", "not here"))
    said = texts(report)
    assert "Size “default” (the size that its makers recommend, or none): `pool` served" in said
    assert "nobody served; `rmm_pool` out of memory" in said
    assert "`pool` held 1 GiB" in said
    titles = [block.title for block in ALLOCATORS.blocks(report) if hasattr(block, "title")]
    assert any("size: too small" in title for title in titles)


def test_a_subject_that_failed_is_a_row_of_its_table_and_a_bar_without_a_value() -> None:
    report = study()
    report.rows.append(lacking("churn", NATIVE, "cupy_pool", "failed"))
    drawn = [block for block in ALLOCATORS.blocks(report) if "churn" in repr(block)]
    assert any("cupy_pool" in repr(block) and "failed" in repr(block) for block in drawn)


def test_a_ranking_names_the_first_the_level_and_those_behind() -> None:
    ranking = rank({"a": around(10.0, 0.1), "b": around(10.3, 0.1), "c": around(20.0)})
    assert (ranking.first, ranking.level, list(ranking.behind)) == ("a", ["b"], ["c"])
    assert ranking.behind["c"].relative == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no subject"):
        rank({})
