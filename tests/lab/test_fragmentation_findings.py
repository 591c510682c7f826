"""What is said of fragmentation, from figures with known answers."""

from __future__ import annotations

import pytest

from tests.lab.allocator_reports import ENOUGH, FEW, around, lacking, made
from vramkit.lab.fragmentation import FRAGMENTATION
from vramkit.lab.fragmentation.changes import (
    EXPLANATIONS,
    Explanation,
    change_text,
    explain,
    explanation,
)
from vramkit.lab.fragmentation.claims import CLAIMS
from vramkit.lab.fragmentation.programs import ARMS, Arm
from vramkit.lab.result import Report
from vramkit.lab.samples import compare

Times = tuple[float, float, float]
"""Nanoseconds of an allocation in phases 1, 3 and 5."""
STUDY: dict[str, Times] = {
    "rmm_pool": (278_900.0, 256_600.0, 239_400.0),
    "rmm_async": (234_100.0, 241_000.0, 241_600.0),
    "rmm_arena": (234_200.0, 227_400.0, 241_500.0),
}


def row(times: Times, count: int = ENOUGH, spread: float = 0.001) -> dict[str, list[float]]:
    return {
        f"phase_{phase}": around(time, spread, count)
        for phase, time in zip((1, 3, 5), times, strict=True)
    }


def study(*, count: int = ENOUGH, simulated: str | None = None, spread: float = 0.001) -> Report:
    rows = {("alone", "cold", name): row(times, count, spread) for name, times in STUDY.items()}
    return made(FRAGMENTATION, rows, simulated=simulated)


def arms(subject: str, times: dict[Arm, Times]) -> Report:
    return made(FRAGMENTATION, {("alone", arm, subject): row(each) for arm, each in times.items()})


def verdicts(report: Report) -> dict[str, str]:
    return {claim.text: claim.judged(report).verdict for claim in CLAIMS}


def texts(report: Report) -> str:
    return "\n".join(each.text for each in FRAGMENTATION.findings(report))


def test_the_studys_own_figures_confirm_its_changes_and_contradict_its_conclusion() -> None:
    assert verdicts(study()) == {
        "100 allocations take 23.4 to 27.9 ms": "confirmed",
        "after 50 rounds the pool is 8.0 % faster": "confirmed",
        "after 50 rounds async is 2.9 % slower": "confirmed",
        "after 50 rounds the arena is 2.9 % faster": "confirmed",
        "the pool gets faster by 14.2 %": "confirmed",
        "async gets slower by 3.2 %": "confirmed",
        "the arena gets slower by 3.1 %": "confirmed",
        # 3.1 % up, where async has 3.2 %: no difference
        "the arena is the most stable": "not confirmed",
        "all changes are below 5 %": "not confirmed",
        # without the other arms nothing tells why
        "warm-up, caches or its own order make the pool faster": "cannot be said here",
        # not measured there
        "allocation that is 10 % slower costs less than 1 %": "cannot be said here",
        "the cases that it calls extreme cost less than 5 %": "cannot be said here",
    }


def test_nothing_is_judged_from_simulated_times() -> None:
    report = study(simulated="h200")
    assert set(verdicts(report).values()) == {"cannot be said here"}
    assert "caches cannot show" in texts(report)


def test_too_few_repetitions_are_said_to_be_too_few() -> None:
    report = study(count=FEW)
    assert set(verdicts(report).values()) == {"cannot be said here"}
    assert "too few repetitions" in texts(report)


def test_changes_within_the_spread_are_none() -> None:
    report = study(spread=0.5)
    assert verdicts(report)["the pool gets faster by 14.2 %"] == "not confirmed"
    assert "within the spread" in texts(report)


@pytest.mark.parametrize(
    ("last", "spread", "verdict"),
    [
        (102.0, 0.001, "confirmed"),
        (106.0, 0.001, "not confirmed"),
        (102.0, 0.1, "cannot be said here"),
        (106.0, 0.1, "cannot be said here"),
    ],
)
def test_small_changes_are_said_only_where_the_spread_is_small(
    last: float, spread: float, verdict: str
) -> None:
    rows = {("alone", "cold", name): row((100.0, 100.0, last), spread=spread) for name in STUDY}
    assert verdicts(made(FRAGMENTATION, rows))["all changes are below 5 %"] == verdict


@pytest.mark.parametrize(
    ("arena", "spread", "verdict"),
    [
        ((100.0, 100.0, 101.0), 0.001, "confirmed"),
        ((100.0, 99.0, 100.0), 0.001, "confirmed"),
        ((100.0, 106.0, 101.0), 0.001, "not confirmed"),
        ((100.0, 94.0, 101.0), 0.001, "not confirmed"),
        ((100.0, 100.0, 101.0), 0.05, "not confirmed"),  # no difference
    ],
)
def test_the_most_stable_changes_least_up_or_down_beyond_the_spread(
    arena: Times, spread: float, verdict: str
) -> None:
    times = ((100.0, 100.0, 90.0), (100.0, 103.0, 104.0), arena)
    rows = {
        ("alone", "cold", name): row(each, spread=spread)
        for name, each in zip(STUDY, times, strict=True)
    }
    found = verdicts(made(FRAGMENTATION, rows))
    assert found["the arena is the most stable"] == verdict
    del rows["alone", "cold", "rmm_pool"]
    found = verdicts(made(FRAGMENTATION, rows))
    assert found["the arena is the most stable"] == "cannot be said here"


def test_one_that_may_not_have_changed_at_all_is_not_less_stable() -> None:
    rows = {
        ("alone", "cold", "rmm_pool"): row((100.0, 100.0, 90.0)),
        ("alone", "cold", "rmm_async"): row((100.0, 100.0, 103.0), spread=0.05),
        ("alone", "cold", "rmm_arena"): row((100.0, 100.0, 101.2)),
    }
    found = verdicts(made(FRAGMENTATION, rows))
    assert found["the arena is the most stable"] == "not confirmed"


@pytest.mark.parametrize(
    ("ns", "spread", "verdict"),
    [
        (279_000.0, 0.001, "confirmed"),
        (279_000.0, 0.2, "confirmed"),
        (500.0, 0.2, "not confirmed"),
        # Twice 27.9 ms is 558 us each: the spread reaches over it, from both sides.
        (550_000.0, 0.2, "cannot be said here"),
        (565_000.0, 0.2, "cannot be said here"),
        (565_000.0, 0.001, "not confirmed"),
    ],
)
def test_an_allocation_of_a_pool_is_not_hundreds_of_microseconds(
    ns: float, spread: float, verdict: str
) -> None:
    text = "100 allocations take 23.4 to 27.9 ms"
    rows = {("alone", "cold", name): row((ns, ns, ns), spread=spread) for name in STUDY}
    assert verdicts(made(FRAGMENTATION, rows))[text] == verdict
    del rows["alone", "cold", "rmm_arena"]
    assert verdicts(made(FRAGMENTATION, rows))[text] == "cannot be said here"


def test_what_holds_for_one_of_the_three_holds_in_part() -> None:
    rows = {
        ("alone", "cold", name): row((ns, ns, ns))
        for name, ns in zip(STUDY, (279_000.0, 500.0, 500.0), strict=True)
    }
    found = verdicts(made(FRAGMENTATION, rows))
    assert found["100 allocations take 23.4 to 27.9 ms"] == "in part"


@pytest.mark.parametrize(
    ("alone", "spread", "verdict"),
    [
        (400.0, 0.001, "confirmed"),
        (600.0, 0.001, "not confirmed"),
        (400.0, 0.2, "cannot be said here"),
        (600.0, 0.2, "cannot be said here"),
        (200.0, 0.2, "confirmed"),
    ],
)
def test_a_tenth_of_an_allocation_is_weighed_against_the_write(
    alone: float, spread: float, verdict: str
) -> None:
    rows = {
        (workload, "warm", "rmm_pool"): row((ns, ns, ns), spread=spread)
        for workload, ns in {"alone": alone, "touch": 5000.0}.items()
    }
    found = verdicts(made(FRAGMENTATION, rows))
    assert found["allocation that is 10 % slower costs less than 1 %"] == verdict


@pytest.mark.parametrize(
    ("late", "spread", "verdict"),
    [
        (104.0, 0.001, "confirmed"),
        (90.0, 0.001, "confirmed"),
        (106.0, 0.001, "not confirmed"),
        (106.0, 0.2, "cannot be said here"),
    ],
)
def test_extreme_cases_are_judged_by_late_calls_against_early_ones(
    late: float, spread: float, verdict: str
) -> None:
    rows = {
        ("long_run", "", "rmm_pool"): {
            "early": around(100.0, spread),
            "late": around(late, spread),
        }
    }
    found = verdicts(made(FRAGMENTATION, rows))
    assert found["the cases that it calls extreme cost less than 5 %"] == verdict


SAME: Times = (100.0, 100.0, 100.0)
FASTER: Times = (200.0, 100.0, 100.0)
A_LITTLE: Times = (110.0, 100.0, 100.0)
ANSWERS: dict[Explanation, dict[Arm, Times]] = {
    "first use": {"cold": FASTER, "warm": SAME, "grown": A_LITTLE, "skipped": FASTER},
    "caches": {"cold": FASTER, "warm": SAME, "grown": FASTER, "skipped": FASTER},
    "repetition": {"cold": FASTER, "warm": FASTER, "grown": FASTER, "skipped": FASTER},
    "mixing": {"cold": FASTER, "warm": FASTER, "grown": FASTER, "skipped": SAME},
    "none fits": {"cold": FASTER, "warm": SAME, "grown": SAME, "skipped": SAME},
    "nothing to explain": {"cold": SAME, "warm": SAME, "grown": SAME, "skipped": SAME},
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_arms_tell_the_explanations_apart(answer: Explanation) -> None:
    report = arms("rmm_pool", ANSWERS[answer])
    assert explanation(report, "rmm_pool", "alone") == answer
    assert (EXPLANATIONS[answer] in texts(report)) == (answer != "nothing to explain")
    explained = verdicts(report)["warm-up, caches or its own order make the pool faster"]
    wanted = "confirmed" if answer in ("first use", "caches", "mixing") else "not confirmed"
    assert explained == wanted


def test_an_arm_that_was_not_measured_leaves_the_explanation_open() -> None:
    for left_out in ARMS:
        gains = {arm: None if arm == left_out else 1.0 for arm in ARMS}
        assert explain(gains) == "unknown"
    assert explain({arm: 0.0 if arm == "cold" else None for arm in ARMS}) == "nothing to explain"


def test_the_report_opens_with_the_share_that_allocation_has() -> None:
    rows = {
        ("alone", "warm", "pool"): row((100.0, 100.0, 100.0)),
        ("touch", "warm", "pool"): row((5000.0, 5000.0, 5000.0)),
    }
    first = FRAGMENTATION.findings(made(FRAGMENTATION, rows))[0]
    assert first.text.startswith("An allocation takes 2.0 % of the time until its block is written")
    for alone in (rows["alone", "warm", "pool"], rows["touch", "warm", "pool"]):
        alone |= {"phase_5": around(alone["phase_5"][2], 0.1)}
    first = FRAGMENTATION.findings(made(FRAGMENTATION, rows))[0]
    assert "takes 2.0 % (1.7 % to 2.3 %) of the time" in first.text
    assert FRAGMENTATION.findings(made(FRAGMENTATION, {}))[0].tone == "warning"


def test_what_can_be_had_of_nearly_full_memory_is_said_the_best_first() -> None:
    rows = {
        ("nearly_full", "", name): {"one_piece": [piece] * ENOUGH, "served": [1.0] * ENOUGH}
        for name, piece in {"arena": 0.1, "pool": 0.9}.items()
    }
    report = made(FRAGMENTATION, rows)
    report.rows.append(lacking("nearly_full", "", "rmm_pool", "out of memory"))
    said = texts(report)
    assert said.index("`pool` 90.0 % and 100 %") < said.index("`arena` 10.0 % and 100 %")
    assert "Out of memory before that: `rmm_pool`." in said


def test_subjects_that_changed_alike_share_a_finding() -> None:
    late = {"pool": 1.0, "direct": 1.0, "async": 2.0}
    rows = {
        ("size_range", "", name): {"early": around(1.0), "late": around(time)}
        for name, time in late.items()
    }
    for name in late:
        rows["alone", "warm", name] = {"phase_1": around(1.0), "phase_3": around(1.0)}
    report = made(FRAGMENTATION, rows)
    report.rows.append(lacking("alone", "cold", "rmm_pool", "not here"))
    said = texts(report)
    assert "rmm_pool" not in said and said.count("cannot be said: the arms") == 1
    assert "late against early: `pool` and `direct` unchanged; `async` +100 %" in said
    assert "`pool`, `direct` and `async`, an allocation against phase 1: warm" in said


def test_any_report_can_be_drawn_and_tells_of_each_claim() -> None:
    for report in (study(), made(FRAGMENTATION, {}), arms("pool", ANSWERS["caches"])):
        drawn = FRAGMENTATION.blocks(report)
        claims = [line[0] for line in drawn[0].rows]  # type: ignore[union-attr]
        assert sorted("; ".join(claims).split("; ")) == sorted(claim.text for claim in CLAIMS)
    assert any("caches" in repr(block) for block in FRAGMENTATION.blocks(report)[1:2])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([2.0] * 5, "+100 %"),
        ([0.0] * 5, "-100 %"),
        ([1.0] * 5, "unchanged"),
        ([1.5], "+50.0 %, too few repetitions"),
        ([1.9, 2.0, 2.1, 2.2, 2.3], "+110 % (+94.0 % to +126 %)"),
    ],
)
def test_a_change_is_told_with_what_it_is_worth(values: list[float], words: str) -> None:
    assert change_text(compare(values, [1.0] * 5)) == words


def test_what_was_nothing_before_has_no_percentage() -> None:
    assert change_text(compare([3.0] * 5, [0.0] * 5)) == "from zero"
    assert change_text(compare([3.0, 4.0], [0.0])) == "from zero, too few repetitions"
