"""Sharing in the lab: exact figures of single cases, verdicts from known figures, the whole way."""

from __future__ import annotations

import pytest

from vramkit import _core
from vramkit.driver import Driver
from vramkit.lab.experiment import Finding
from vramkit.lab.sharing import SHARING, claims, tables
from vramkit.lab.sharing.cases import (
    GIB,
    H200,
    HALF_DUPLEX,
    MODES,
    STUDY,
    SwitchCase,
    TurnsCase,
    all_cases,
    without_eviction,
)
from vramkit.lab.sharing.measure import switch, turns
from vramkit.report.blocks import Table
from vramkit.report.units import value_text

from .mode_reports import Figures, lab_on, made_up, run_loop

PROGRAM = 12.884901888e9
ONE_COPY = PROGRAM / 16e9
FAULTS = 3_145_728 * 15e-6
BOTH = PROGRAM / 14.5e9  # with the H200's loss of duplex
THIRTY = TurnsCase(STUDY, 12, 30, 32)

pytestmark = pytest.mark.sim_only


@pytest.mark.parametrize(
    ("case", "mode", "seconds"),
    [
        (SwitchCase(STUDY), "paged", FAULTS),
        (SwitchCase(STUDY, empty=True), "prefetch", ONE_COPY),
        (SwitchCase(STUDY), "prefetch", BOTH),
        (SwitchCase(STUDY), "prefetch_out_in", 2 * ONE_COPY),
        (SwitchCase(without_eviction(STUDY)), "prefetch", FAULTS),
        (SwitchCase(without_eviction(STUDY)), "prefetch_out_in", 2 * ONE_COPY),
        (SwitchCase(without_eviction(STUDY), more=4 * GIB), "prefetch", FAULTS * 2 / 3),
        (SwitchCase(HALF_DUPLEX), "prefetch_both", 2 * ONE_COPY),
        (SwitchCase(H200), "paged", PROGRAM / 11e9),
    ],
)
def test_a_switch_takes_what_the_arithmetic_says(
    driver: Driver, case: SwitchCase, mode: str, seconds: float
) -> None:
    measured = switch(case, mode, lab_on(driver, SHARING))["switch"]
    assert measured == pytest.approx(seconds, rel=1e-3)


def test_swap_moves_the_shortfall_in_both_directions_and_the_others_everything(
    driver: Driver,
) -> None:
    lab = lab_on(driver, SHARING)
    case = SwitchCase(STUDY, more=4 * GIB)
    for mode, moved in (("swap", 8), ("swap_out_in", 8), ("prefetch", 12), ("paged", 12)):
        found = switch(case, mode, lab)
        assert (found["bytes_in"], found["bytes_out"]) == (moved * GIB, moved * GIB), mode
    into_empty = switch(SwitchCase(STUDY, empty=True), "swap", lab)
    assert (into_empty["bytes_in"], into_empty["bytes_out"]) == (12 * GIB, 0)


def test_a_turn_by_paging_is_its_faults_and_one_window_whatever_the_quantum(
    driver: Driver,
) -> None:
    lab = lab_on(driver, SHARING)
    kernel = PROGRAM / STUDY.add_bytes_per_s
    for quantum in (2, 30):
        found = turns(TurnsCase(STUDY, 12, quantum, 32), "paged", lab)
        assert found["turn"] == pytest.approx(FAULTS + 32 * kernel, rel=1e-4)
        assert found["share"] == pytest.approx(32 * kernel / found["turn"], rel=1e-4)
    assert turns(THIRTY, "swap", lab)["share"] == pytest.approx(0.9709, abs=5e-5)


def test_figures_are_the_same_whatever_the_simulated_card_was_before(driver: Driver) -> None:
    case = SwitchCase(STUDY)
    sim = driver.sim
    assert sim is not None
    first = switch(case, "swap", lab_on(driver, SHARING))
    sim.reset("weight-streaming", clock="wall", scale=1000, capacity="1GiB")
    assert switch(case, "swap", lab_on(driver, SHARING)) == first


def test_every_mode_of_the_lab_is_one_of_the_engine_and_others_are_refused(
    driver: Driver,
) -> None:
    device = driver.device()
    add = device.kernels.function("vk_add")
    with pytest.raises(ValueError, match="mode is 'swapping'; it may be " + ", ".join(MODES)):
        _core.sharing_switch(device, add, 8, "swapping", 3 << 20, 0, 1, False)
    with pytest.raises(ValueError, match="a program of 4096 bytes; it has three arrays"):
        _core.sharing_switch(device, add, 8, "swap", 4096, 0, 1, False)
    for number, window in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="is 0; it may be an integer from 1"):
            _core.sharing_switch(device, add, 8, "swap", 3 << 20, 0, number, False)
            _core.sharing_turns(device, add, 8, "swap", 3 << 20, 0, 1, 1.0, window)


def test_cases_have_names_of_their_own_and_the_short_ones_are_among_the_whole() -> None:
    whole, short = all_cases(True), all_cases(False)
    assert short.items() <= whole.items()
    assert len(whole) == 14 + 2 * 3 * 4 * 3
    assert not [case for case in whole if "," in case.name]
    assert {each for cases in claims.AXES.values() for each in cases} <= set(short.values())
    assert set(tables.SWITCHES.values()) <= set(short.values())


# What is found


def verdicts(driver: Driver, figures: Figures) -> dict[str, str]:
    report = made_up(SHARING, driver, figures)
    return {each.text: each.judged(report).verdict for each in claims.claims(report)}


def shares(mode: str, axis: dict[str, tuple[float, ...]]) -> Figures:
    return {
        (case.case, mode, "share"): share
        for name, values in axis.items()
        for case, share in zip(claims.AXES[name], values, strict=True)
    }


def test_a_report_without_figures_has_no_verdict_on_what_a_simulated_card_could_tell(
    driver: Driver,
) -> None:
    found = verdicts(driver, {})
    assert set(found.values()) == {"in part", "cannot be said here"}
    assert len(found) == 4
    report = made_up(SHARING, driver, {})
    assert [each.tone for each in SHARING.findings(report)] == ["note", "plain"]
    assert all(block is not None for block in SHARING.blocks(report))


@pytest.mark.parametrize(
    ("first", "later", "cost"),
    [(40e9, 4.1e12, "confirmed"), (4.1e12, 4.0e12, "confirmed"), (1e9, 2e12, "in part"),
     (90e9, 4.1e12, "in part"), (4.1e12, 4.1e12, "not confirmed")],
)  # fmt: skip
def test_a_card_s_answer_on_managed_memory_judges_what_it_costs(
    driver: Driver, first: float, later: float, cost: str
) -> None:
    found = judged_on_card(driver, claims.Managed("card", 6 << 30, 4.1e12, first, later, None))
    assert found == [cost, "cannot be said here"]


@pytest.mark.parametrize(
    ("shown", "verdict"),
    [(0, "confirmed"), (1 << 30, "in part"), (6 << 30, "not confirmed")],
)
def test_a_card_s_answer_on_managed_memory_judges_what_is_shown(
    driver: Driver, shown: int, verdict: str
) -> None:
    managed = claims.Managed("card", 6 << 30, 4.1e12, 40e9, 4.1e12, shown)
    assert judged_on_card(driver, managed) == ["confirmed", verdict]


def judged_on_card(driver: Driver, managed: claims.Managed) -> list[str]:
    report = made_up(SHARING, driver, {})
    return [each.judged(report).verdict for each in claims.claims(report, managed)[-2:]]


def test_claims_follow_the_figures(driver: Driver) -> None:
    def switches(paged: float, empty: float, full: float, stuck: float) -> Figures:
        return {
            (SwitchCase(STUDY).case, "paged", "switch"): paged,
            (SwitchCase(STUDY, empty=True).case, "prefetch", "switch"): empty,
            (SwitchCase(STUDY).case, "prefetch", "switch"): full,
            (SwitchCase(without_eviction(STUDY)).case, "prefetch", "switch"): stuck,
            (SwitchCase(without_eviction(STUDY)).case, "prefetch_out_in", "switch"): 1.6,
        }

    as_said = verdicts(driver, switches(47.2, 0.75, 1.5, 1.5))
    assert as_said["a switch by page faults takes 47 s"] == "in part"
    assert as_said["a prefetch of 12 GB takes 0.75 s"] == "confirmed"
    assert as_said["with prefetch a switch takes 1 to 2 s"] == "confirmed"
    assert as_said["prefetching the winner's memory is the remedy"] == "confirmed"
    otherwise = verdicts(driver, switches(30.0, 0.805, 2.5, 47.2))
    assert [otherwise[said] for said in list(otherwise)[:4]] == ["not confirmed"] * 4
    half = verdicts(driver, switches(47.2, 0.75, 0.9, 47.2))
    assert half["with prefetch a switch takes 1 to 2 s"] == "in part"
    assert half["prefetching the winner's memory is the remedy"] == "in part"


def test_shares_are_judged_by_the_case_of_the_study(driver: Driver) -> None:
    def found(paged: float, prefetch: float) -> list[str]:
        by_said = verdicts(
            driver,
            {
                (THIRTY.case, "paged", "share"): paged,
                (TurnsCase(STUDY, 12, 30, 1).case, "paged", "share"): 0.001,
                (TurnsCase(H200, 12, 30, 32).case, "paged", "share"): 0.96,
                (THIRTY.case, "prefetch", "share"): prefetch,
                (THIRTY.case, "swap", "share"): 0.97,
            },
        )
        return [
            by_said["3 % of the speed is left by paging"],
            by_said["prefetch leaves more than 90 % of a quantum of 30 s"],
        ]

    assert found(0.026, 0.97) == ["in part", "confirmed"]
    assert found(0.20, 0.89) == ["not confirmed", "not confirmed"]


def test_what_matters_is_what_moves_the_share(driver: Driver) -> None:
    still = {"the window": (0.5, 0.55, 0.58), "the quantum": (0.52, 0.55, 0.55, 0.57)}
    said = "window, quantum and amount change nothing as long as memory comes by paging"
    flat = shares("paged", still | {"the amount of memory": (0.5, 0.54, 0.55)})
    assert verdicts(driver, flat)[said] == "confirmed"
    moved = shares("paged", still | {"the amount of memory": (0.9, 0.54, 0.55)})
    assert verdicts(driver, moved)[said] == "not confirmed"
    words = [each.text for each in SHARING.findings(made_up(SHARING, driver, moved))]
    (paged,) = [text for text in words if text.startswith("paged: ")]
    assert "the window hardly matters (50.0 % to 58.0 %)" in paged
    assert "the amount of memory matters (54.0 % to 90.0 %)" in paged
    # Without one of its cases an axis is not spoken of.
    del moved[TurnsCase(STUDY, 12, 30, 1).case, "paged", "share"]  # type: ignore[attr-defined]
    assert said not in verdicts(driver, moved)


@pytest.mark.parametrize(
    ("both", "tone", "gain"),
    [(0.9, "good", "-44 %"), (1.55, "plain", "-3 %"), (1.599, "plain", "no difference")],
)
def test_both_directions_at_once_are_praised_for_what_they_save(
    driver: Driver, both: float, tone: str, gain: str
) -> None:
    case = SwitchCase(STUDY).case
    figures = {(case, "swap_out_in", "switch"): 1.6, (case, "swap", "switch"): both}
    found = SHARING.findings(made_up(SHARING, driver, figures))
    (finding,) = [each for each in found if "out and then in" in each.text]
    assert isinstance(finding, Finding) and finding.tone == tone
    assert finding.text.endswith(f" with both at once: {gain}.")


# The whole way


def test_cases_run_in_processes_and_the_report_is_drawn(driver: Driver) -> None:
    chosen = [SwitchCase(STUDY), SwitchCase(STUDY, empty=True), THIRTY]
    cases = [each.case for each in chosen]
    report = run_loop(SHARING, driver, ["prefetch", "swap"], cases)
    assert {row.outcome for row in report.rows} == {"measured"}, report.rows
    row = report.row(cases[0].workload, "swap", cases[0].arm)
    assert row is not None and row.values["switch"] == [pytest.approx(0.8929, abs=5e-5)]
    assert value_text(row.values["switch"][0], "s") == "893 ms"
    judged = SHARING.blocks(report)[0]
    assert isinstance(judged, Table)
    assert any("0.805 s into an empty card" in figures for _, _, figures, _ in judged.rows)
    first, *_, last = (finding.text for finding in SHARING.findings(report))
    assert first == (
        "Of the time, switches take 2.90 % by prefetch, 2.91 % by swap: switches that took no "
        "time would save that, at most."
    )
    assert "not confirmed: “a prefetch of 12 GB takes 0.75 s”" in last


def test_without_the_simulator_no_mode_takes_part() -> None:
    class Real:
        simulated = False

    why = set(SHARING.subjects(Real()).values())  # type: ignore[arg-type]
    assert why == {"runs on the simulated GPU, in exact virtual time: --driver sim"}
