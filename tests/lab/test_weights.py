"""Weights in the lab: arithmetic on fewer layers, verdicts from known figures, the whole way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from vramkit.driver import Driver
from vramkit.lab.experiment import Unmeasured
from vramkit.lab.settings import resolve
from vramkit.lab.weights import SWEEP, WEIGHTS, claims, decoder, neighbour, passes, sweep
from vramkit.lab.weights.cases import (
    DRAWN,
    DecoderCase,
    NeighbourCase,
    StudyCase,
    all_cases,
)
from vramkit.lab.weights.study import (
    AS_COMPUTE,
    FEWEST_LAYERS,
    HOSTS,
    LINK_BOUND,
    LINKS,
    MB,
    PROFILE_RATE,
    SUBJECTS,
    WAITS_5_MS,
    WAITS_20_MS,
    Cell,
    cell_of,
    link_text,
)
from vramkit.lab.weights.tables import chart
from vramkit.report.blocks import BarChart, Table, Timeline
from vramkit.weights import POLICIES
from vramkit.weights.passes import Host

from .allocator_reports import made
from .mode_reports import Figures, lab_as_on_a_card, lab_on, made_up, run_loop

LAYERS = 10
CALLS_MS = 0.05
"""A layer: what driver calls and the latencies of copies and kernels add to the arithmetic."""

pytestmark = pytest.mark.sim_only


@pytest.mark.parametrize(
    ("cell", "ms_a_layer"),
    [
        # 2 ms of ensure, which a host that runs ahead hides.
        (Cell("history1", PROFILE_RATE, "layer"), 202),
        (Cell("first_step", PROFILE_RATE, "layer"), 202),
        (Cell("stage1", PROFILE_RATE, "layer"), 200),
        (Cell("auto", PROFILE_RATE, "group"), 200),
        # The ffn group on demand: its 150 MB come behind attention, beside it, or partly so.
        (Cell("history", PROFILE_RATE, "group"), 80 + 30 + 120),
        (Cell("history", PROFILE_RATE, "layer"), 200),
        (Cell("history", WAITS_5_MS, "layer"), 205),
        (Cell("history", WAITS_20_MS, "layer"), 220),
        (Cell("block_shallow", WAITS_5_MS, "layer"), 207),
        # 250 MB a layer: as fast as compute, and slower.
        (Cell("auto", AS_COMPUTE), 200),
        (Cell("stage2", LINK_BOUND, "group"), 250),
    ],
)
def test_a_steady_pass_takes_what_the_arithmetic_says(
    driver: Driver, cell: Cell, ms_a_layer: float
) -> None:
    cell = msgspec.structs.replace(cell, layers=LAYERS)
    _, steady = passes.times(cell, lab_on(driver, WEIGHTS))
    assert steady == pytest.approx(LAYERS * ms_a_layer, abs=LAYERS * CALLS_MS)
    assert steady >= cell.bound * 1e3


def test_bytes_by_phase_are_those_of_the_study_in_the_first_layer(driver: Driver) -> None:
    lab = lab_on(driver, WEIGHTS)

    def mb(found: dict[str, float], before: str = "") -> list[float]:
        return [found[f"{before}{part}_bytes"] / MB for part in ("attn", "ffn")]

    shallow = passes.measure(Cell("history", host="group", layers=LAYERS), lab)
    deep = passes.measure(Cell("stage2", host="group", layers=LAYERS), lab)
    assert mb(shallow, "first_") == mb(shallow) == pytest.approx([0, 100], abs=0.05)
    assert mb(deep, "first_") == pytest.approx([400, 600], abs=0.5)
    assert sum(mb(deep)) == pytest.approx(250, abs=0.5)
    assert (shallow["misses"], deep["misses"]) == (LAYERS, 0)
    assert (deep["ring"], shallow["ring"]) == pytest.approx((1250 * MB, 500 * MB), rel=0.005)


def test_what_a_pass_waits_is_told_apart(driver: Driver) -> None:
    lab = lab_on(driver, WEIGHTS)
    found = passes.measure(Cell("block_shallow", WAITS_5_MS, "layer", layers=LAYERS), lab)
    assert found["blocked"] == pytest.approx(2, abs=CALLS_MS)
    assert found["idle"] == pytest.approx(7, abs=CALLS_MS)
    assert found["layer"] == pytest.approx(207, abs=CALLS_MS)
    assert found["over_bound"] == pytest.approx(207 / 200, abs=1e-3)


def test_a_neighbour_is_felt_most_by_a_small_ring_and_repeats_exactly(driver: Driver) -> None:
    busy = neighbour.Neighbour(mean_gap_ms=500)
    lab = lab_on(driver, WEIGHTS)

    def measure(subject: str, sequences: int = 2) -> dict[str, float]:
        cell = cell_of(subject, WAITS_20_MS, "ahead", 1, LAYERS)
        return neighbour.measure(cell, lab, busy, 6, sequences)

    small, again, large = measure("auto"), measure("auto"), measure("auto_5")
    assert small == again
    assert small["quickest"] < small["slowest"]
    assert large["slowest"] < small["slowest"]
    one = measure("auto", 1)
    assert small["late"] == 2 and one["late"] == 1
    assert one["steady"] != small["steady"]  # the sequences differ
    busy = neighbour.Neighbour(mean_gap_ms=1e9)  # as good as none
    assert measure("auto")["late"] == 0


def test_a_steady_pass_allocates_nothing_and_waits_only_at_its_ends(driver: Driver) -> None:
    cell = Cell("auto", layers=LAYERS)
    device = passes.simulated_card(cell, lab_on(driver, WEIGHTS))
    sim = driver.sim
    assert sim is not None
    with passes.run_passes(cell, device) as run:
        for _ in range(2):
            run.one()
        sim.reset_call_counts()
        run.one()
        calls = {name: count for name, count in sim.call_counts().items() if count}
    assert calls["cuMemcpyHtoDAsync_v2"] == 5 * LAYERS  # 2 and 3 chunks of at most 64 MiB
    assert calls["cuStreamSynchronize"] == 2
    assert not [name for name in calls if "Create" in name or "Alloc" in name]


def test_on_a_card_times_are_scaled_so_that_copies_take_the_same_part_of_a_layer(
    driver: Driver,
) -> None:
    sim = driver.sim
    assert sim is not None
    sim.reset("h200", data=False, checker=False, capacity="8GiB")
    lab = lab_as_on_a_card(driver.device(), WEIGHTS, f"layers={LAYERS}")
    for policy, over in (("history1", 1.01), ("history", 1.15), ("auto", 1.0)):
        host: Host = "group" if policy == "history" else "layer"
        found = WEIGHTS.measure(StudyCase(PROFILE_RATE, host).case, policy, lab)
        assert found["over_bound"] == pytest.approx(over, abs=0.004), policy
        # 55.4 GB/s in place of 5: everything is eleven times as quick.
        assert found["bound"] == pytest.approx(LAYERS * 200 * 5 / 55.4, rel=0.01)
        assert "ffn_bytes" not in found  # a card does not see the copies
    with pytest.raises(Unmeasured, match="simulated"):
        WEIGHTS.measure(NeighbourCase(WAITS_20_MS, "ahead").case, "auto", lab)


def test_cases_and_policies_are_each_there_once() -> None:
    whole, short = all_cases(True), all_cases(False)
    assert short.items() <= whole.items()
    assert len(whole) == len(LINKS) * 3 + 3 + 6 + 2
    swept = [each.policy(wait) for each in sweep.all_swept() for wait in sweep.WAITS]
    assert len({msgspec.json.encode(policy) for policy in swept}) == 144
    assert len(swept) == 4 * 144
    cases = SWEEP.cases({})
    assert len({case.name for case in cases}) == len(cases) == 4 * 72
    assert not [case for case in (*whole, *cases) if "," in case.name]
    assert all(policy in swept for policy in POLICIES.values() if policy.depth is not None)


def test_no_swept_policy_has_room_for_the_whole_of_the_smallest_model() -> None:
    """What has room for it streams nothing."""
    fewest = FEWEST_LAYERS
    for each in sweep.all_swept():
        cell = Cell(each.policy("event"), layers=fewest)
        assert cell.ring < sum(group.nbytes for group in cell.groups)
    with pytest.raises(ValueError, match=f"from {fewest} to 1000"):
        resolve(SWEEP.settings, [f"layers={fewest - 1}"])


def test_a_table_of_the_sweep_has_the_links_that_were_measured() -> None:
    swept = [each for each in sweep.all_swept() if each.link == sweep.LINKS[0]]
    times = {f"steady_{host}": [1000.0] for host in HOSTS}
    report = made(SWEEP, {(each.case.workload, each.case.arm, "event"): times for each in swept})
    for table in (sweep.by_issue(report), sweep.by_depth(report)):
        assert {row[0] for row in table.rows} == {swept[0].case.workload}
    assert all(any(cells) for _, *cells in sweep.contrasts(report).rows)


def test_the_plot_of_the_sweep_has_time_by_depth_and_timing_of_each_link(driver: Driver) -> None:
    """Here a pass takes longer with a shallow ring, and with ffn late."""
    late = {"attn": 0, "ffn": 10, "end": 20, sweep.ON_DEMAND: 30}
    figures = {
        (each.case, wait, f"steady_{host}"): 1000.0 / each.depth
        + late[each.ffn]
        + each.own_ffn_first
        + 5000 * (wait == "block")
        + 7000 * (host != sweep.DRAWN_HOST)
        for each in sweep.all_swept()
        for wait in sweep.WAITS
        for host in HOSTS
        if each.link != sweep.LINKS[0]
    }
    report = made_up(SWEEP, driver, figures)
    (drawn,) = (block for block in SWEEP.blocks(report) if isinstance(block, BarChart))
    assert drawn == sweep.chart(report)
    links = [link_text(link) for link in sweep.LINKS[1:]]
    timings = [(0, "ffn at attn"), (10, "ffn at ffn"), (20, "ffn at end"), (30, "ffn on demand")]
    # With own ffn first or not: the middle of the two, and both.
    expected = [
        (link, f"depth {depth}", timing, *(1000 / depth + ms + own for own in (0.5, 0, 1)))
        for link in links
        for depth in (1, 2, 4)
        for ms, timing in timings
    ]
    found = [(bar.group, bar.label, bar.series, bar.value, bar.low, bar.high) for bar in drawn.bars]
    assert found == expected
    assert not any(isinstance(each, BarChart) for each in SWEEP.blocks(made_up(SWEEP, driver, {})))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_smallest_model_is_streamed_by_every_policy(driver: Driver, subject: str) -> None:
    cell = cell_of(subject, PROFILE_RATE, "ahead", 1, FEWEST_LAYERS)
    _, steady = passes.times(cell, lab_on(driver, WEIGHTS))
    assert steady >= cell.bound * 1e3


@pytest.mark.parametrize("layers", [1, FEWEST_LAYERS - 1])
def test_a_model_that_fits_a_ring_is_refused(driver: Driver, layers: int) -> None:
    with pytest.raises(ValueError, match=f"layers is {layers}; with less than {FEWEST_LAYERS}"):
        WEIGHTS.cases(lab_on(driver, WEIGHTS, f"layers={layers}").settings)


# A model of PyTorch. Here it computes on the host: a trial of the code, whose times say nothing.


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte of bytes that are really copied takes its time."""
    monkeypatch.setattr("vramkit.lab.weights.link.link_rate", lambda device: 50e9)


@pytest.fixture(scope="module")
def trial() -> Iterator[decoder.Decoder]:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from vramkit.lab.weights.models import inputs, llama, with_values

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # where cores are busy, more would wait for each other
    model = with_values(llama(512, 5), "cpu")
    yield decoder.Decoder(torch, model, {"token": inputs(1, 512, "cpu")}, "cpu")
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("link")
@pytest.mark.parametrize("subject", ["auto", "auto_3", "history"])
def test_a_decoder_computes_the_same_with_every_policy_and_its_least_memory(
    driver: Driver, subject: str, trial: decoder.Decoder
) -> None:
    with trial.torch.no_grad():
        found = trial.measure("least memory", subject, lab_on(driver, WEIGHTS))
    assert found["equal"] == 1 and found["token"] > 0 and found["token_over_bound"] > 0


def test_a_decoder_that_computes_something_else_is_a_failure(
    driver: Driver, trial: decoder.Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_results() -> dict[str, float]:
        trial.resident = {"token": trial.torch.zeros(1)}
        return {"token": 1.0}

    monkeypatch.setattr(trial, "_on_the_card", other_results)
    with (
        trial.torch.no_grad(),
        pytest.raises(RuntimeError, match="differ from those of the resident model"),
    ):
        trial.measure("half of the model", "auto", lab_on(driver, WEIGHTS))


def test_without_a_card_no_decoder_is_measured(driver: Driver) -> None:
    missing = WEIGHTS.subjects(driver)
    assert {name for name, why in missing.items() if not why} == set(SUBJECTS)
    lab = lab_on(driver, WEIGHTS)
    for subject in ("auto", "resident", "accelerate"):
        with pytest.raises(Unmeasured, match="needs a real card"):
            decoder.measure(DecoderCase("least memory"), subject, lab)
    with pytest.raises(Unmeasured, match="not groups of bytes"):
        WEIGHTS.measure(StudyCase(PROFILE_RATE, "ahead").case, "accelerate", lab)


# What is found


def totals(walls: dict[str, tuple[float, float]]) -> Figures:
    """Of steady passes at 5 GB/s, host ahead and in step with the layer; slower links the same."""
    figures: dict[Any, float] = {}
    for policy, (ahead, layer) in walls.items():
        for link in (PROFILE_RATE, WAITS_5_MS, WAITS_20_MS):
            figures[StudyCase(link, "ahead").case, policy, "over_bound"] = ahead / 16_000
            figures[StudyCase(link, "layer").case, policy, "over_bound"] = layer / 16_000
            figures[StudyCase(link, "group").case, policy, "over_bound"] = layer / 16_000
    return figures


def verdicts(driver: Driver, figures: Figures) -> dict[str, str]:
    report = made_up(WEIGHTS, driver, figures)
    return {each.text: each.judged(report).verdict for each in claims.claims(report)}


def test_totals_are_judged_as_the_study_has_them(driver: Driver) -> None:
    as_said = {policy: (float(ms), float(ms)) for policy, ms in claims.STUDY_MS.items()}
    as_said["block_shallow"] = (16_600, 16_600)
    found = verdicts(driver, totals(as_said))
    # 220 ms a layer are not the 205 of its own total.
    assert found.pop("`history` takes 220 ms a layer") == "not confirmed"
    assert set(found.values()) == {"confirmed"} and len(found) == 13
    same = dict.fromkeys(as_said, (16_000.0, 16_000.0)) | {"history": (16_001.0, 16_001.0)}
    otherwise = verdicts(driver, totals(same))
    assert [said for said in otherwise if otherwise[said] == "confirmed"] == [
        "`stage1` takes 16,000 ms",
    ]
    layers = {each: (17_600.0, 17_600.0) for each in as_said}
    assert verdicts(driver, totals(layers))["`history` takes 220 ms a layer"] == "confirmed"
    assert verdicts(driver, {}) == {}


def test_blocking_is_judged_in_step_with_the_layer_not_ahead(driver: Driver) -> None:
    ms = {policy: (16_000.0, 16_000.0) for policy in claims.STUDY_MS}
    in_step = ms | {"history1": (16_000.0, 16_160.0)}
    ahead = ms | {"history1": (16_160.0, 16_000.0)}
    assert verdicts(driver, totals(in_step))["blocking costs 0.99 %"] == "confirmed"
    assert verdicts(driver, totals(ahead))["blocking costs 0.99 %"] == "not confirmed"


def test_copies_beside_attention_in_the_first_layer_only_are_a_part(driver: Driver) -> None:
    case = StudyCase(PROFILE_RATE, "group").case

    def found(first: float, steady: float, shallow: float = 0.0) -> str:
        figures = {
            (case, policy, f"{before}attn_bytes"): megabytes * MB
            for before, deep in (("first_", first), ("", steady))
            for policy, megabytes in (("history1", deep), ("history", shallow))
        }
        (verdict,) = verdicts(driver, figures).values()
        return verdict

    assert [found(400, 400), found(397, 100), found(300, 100), found(400, 400, 50)] == [
        "confirmed",
        "in part",
        "not confirmed",
        "not confirmed",
    ]


def test_six_fold_transfer_in_the_first_layer_only_is_a_part(driver: Driver) -> None:
    case = StudyCase(PROFILE_RATE, "group").case

    def found(first: float, steady: float) -> str:
        figures = {
            (case, policy, f"{before}ffn_bytes"): times * 100e6
            for before, times_deep in (("first_", first), ("", steady))
            for policy, times in (("history1", times_deep), ("history", 1.0))
        }
        return verdicts(driver, figures)["`history1` transfers six times as much"]

    assert [found(6, 6), found(6, 1.5), found(2, 1.5)] == ["confirmed", "in part", "not confirmed"]


@pytest.mark.parametrize(
    ("history", "stage1", "verdict"),
    [(1.034, 1.016, "confirmed"), (1.016, 1.034, "not confirmed"), (1.0, 1.0, "not confirmed")],
)
def test_a_policy_is_stable_by_its_slowest_pass_against_its_median(
    driver: Driver, history: float, stage1: float, verdict: str
) -> None:
    case = NeighbourCase(WAITS_20_MS, "ahead").case
    slowest = {"history": 17.0 * history, "stage1": 16.0 * stage1, "auto": 16.1, "auto_5": 16.1}
    middle = {"history": 17.0, "stage1": 16.0, "auto": 16.0, "auto_5": 16.0}
    figures = {
        (case, name, quantity): value
        for quantity, values in (("slowest", slowest), ("steady", middle))
        for name, value in values.items()
    }
    said = "deep prefetch is stable, shallow prefetch is not"
    assert verdicts(driver, figures)[said] == verdict


def test_tables_have_rows_of_what_was_measured_alone(driver: Driver) -> None:
    case = StudyCase(PROFILE_RATE, "layer").case
    figures = {(case, "history1", each): 16_000.0 for each in ("steady", "cold", "layer")}
    drawn = WEIGHTS.blocks(made_up(WEIGHTS, driver, figures))
    totals = [block for block in drawn if isinstance(block, Table) and "policy" in block.columns]
    assert [[row[0] for row in table.rows] for table in totals] == [["history1"]]
    assert totals[0].rows[0][3:] == ["", "16,000.0 (16,000.0)", ""]


def test_the_chart_has_what_is_above_the_bound(driver: Driver) -> None:
    case = StudyCase(PROFILE_RATE, "layer").case
    overs = {"history1": 1.01, "auto": 0.9999}
    figures = {(case, name, "over_bound"): over for name, over in overs.items()}
    drawn = chart(made_up(WEIGHTS, driver, figures))
    bars = {bar.label: bar.value for bar in drawn.bars if bar.group.startswith("5 GB/s")}
    assert bars["history1"] == pytest.approx(0.01)
    assert (bars["auto"], bars["stage1"]) == (0, None)


def test_a_pass_of_a_decoder_is_told_in_milliseconds_and_by_its_bound() -> None:
    found = decoder.Decoder._values(
        {"token": 0.030, "prefill": 2.0}, {"token": 0.001, "prefill": 1.6}, {"token": True}, 0.020
    )
    assert found == {
        "equal": 1,
        "token": 30.0,
        "token_over_bound": pytest.approx(1.5),  # the link is the bound
        "prefill": 2000.0,
        "prefill_over_bound": pytest.approx(1.25),  # the card is
    }


def test_the_policy_that_is_named_is_the_smallest_of_the_best(driver: Driver) -> None:
    cases = [StudyCase(link, host).case for link in LINKS for host in HOSTS]
    overs = {"auto": 1.0005, "stage1": 1.0, "history": 1.4}
    rings = {"auto": 500e6, "stage1": 1250e6, "history": 500e6}
    figures = {(case, name, "over_bound"): over for case in cases for name, over in overs.items()}
    figures |= {(case, name, "ring"): ring for case in cases for name, ring in rings.items()}
    found = WEIGHTS.findings(made_up(WEIGHTS, driver, figures))
    (named,) = [each for each in found if "above the bound" in each.text]
    assert named.text.startswith("`auto` is never more than 0.05 % above the bound, with 500 MB")
    assert "up to 40 % above it" in named.text and named.tone == "good"


def test_a_report_without_the_study_s_policies_says_nothing_of_them(driver: Driver) -> None:
    cases = [StudyCase(link, host).case for link in LINKS for host in HOSTS]
    given = {"over_bound": {"auto_3": 1.0, "auto_5": 1.1}, "ring": {"auto_3": 7e8, "auto_5": 9e8}}
    report = made_up(
        WEIGHTS,
        driver,
        {
            (case, name, quantity): value
            for quantity, values in given.items()
            for case in cases
            for name, value in values.items()
        },
    )
    (named,) = [each for each in WEIGHTS.findings(report) if "above the bound" in each.text]
    assert named.text == (
        "`auto_3` is never more than 0.00 % above the bound, with 700 MB of the card: "
        "no policy could save more than that there."
    )


def test_claims_need_repetitions_on_a_card(driver: Driver) -> None:
    cases = [StudyCase(PROFILE_RATE, host).case for host in HOSTS]
    cases.append(StudyCase(WAITS_5_MS, "layer").case)
    report = made_up(WEIGHTS, driver, {(case, "stage1", "over_bound"): 1.0 for case in cases})
    (claim,) = claims.claims(report)
    assert claim.judged(report).verdict == "confirmed"
    report.simulated = None
    assert claim.judged(report).verdict == "cannot be said here"
    for row in report.rows:
        row.values["over_bound"] *= 5
    assert claim.judged(report).verdict == "confirmed"


def test_peers_are_told_apart_only_beyond_the_spread(driver: Driver) -> None:
    case = DecoderCase("least memory").case
    report = made_up(WEIGHTS, driver, {(case, name, "token"): 1 for name in ("auto", "accelerate")})
    ours, theirs = (report.row(case.workload, name, case.arm) for name in ("auto", "accelerate"))
    assert ours is not None and theirs is not None
    for mine, other, tone in (
        ([40, 41, 42, 41, 40], [300, 301, 305, 299, 300], "good"),
        ([40, 50, 60, 45, 55], [41, 51, 61, 46, 56], "plain"),
        ([300, 301, 305, 299, 300], [40, 41, 42, 41, 40], "bad"),
        ([40, 41], [300, 301], "plain"),
    ):
        ours.values["token"], theirs.values["token"] = mine, other
        (finding,) = [each for each in WEIGHTS.findings(report) if "offload()" in each.text]
        assert finding.tone == tone, finding
    ours.values["token"], theirs.values["token"] = [90, 40, 40, 41, 40], [7, 300, 301, 299, 300]
    (finding,) = [each for each in WEIGHTS.findings(report) if "offload()" in each.text]
    assert "offload() 40.0 ms ± " in finding.text and "accelerate 300 ms ± " in finding.text


def swept(driver: Driver, wall: Any) -> dict[str, str]:
    figures = {
        (each.case, wait, f"steady_{host}"): wall(each, wait, host)
        for each in sweep.all_swept()
        for wait in sweep.WAITS
        for host in HOSTS
    }
    report = made_up(SWEEP, driver, figures)
    assert all(SWEEP.blocks(report))
    return {each.text: each.judged(report).verdict for each in sweep.claims(report)}


def test_depth_timing_and_waiting_are_judged_each_by_itself(driver: Driver) -> None:
    def as_said(each: sweep.Swept, wait: str, host: Host) -> float:
        depth = 1.15 if each.depth == 1 else 1.0
        late = 1.07 ** ((each.attn == "end") + (each.ffn == "end"))
        blocked = 1.01 if wait == "block" and host != "ahead" else 1.0
        return 16_000 * depth * late * blocked

    names = ["depth is worth 10", "timing is worth 5", "not to block is worth", "depth matters 10"]
    found = swept(driver, as_said)
    assert [said.startswith(name) for said, name in zip(found, names, strict=True)] == [True] * 4
    assert set(found.values()) == {"confirmed"}
    assert set(swept(driver, lambda *_: 16_000).values()) == {"not confirmed"}
    assert sweep.claims(made_up(SWEEP, driver, {})) == []


# The whole way


def test_policies_run_in_processes_and_the_report_is_drawn(driver: Driver) -> None:
    cases = [StudyCase(PROFILE_RATE, "layer").case, DecoderCase("least memory").case]
    subjects = ["history1", "auto", "resident"]
    report = run_loop(WEIGHTS, driver, subjects, cases, f"layers={LAYERS}")
    outcomes = {(row.subject, row.workload): row.outcome for row in report.rows}
    assert outcomes == {
        (subject, case.workload): "measured"
        if case is cases[0] and subject != "resident"
        else "not here"
        for subject in subjects
        for case in cases
    }
    row = report.row(cases[0].workload, "history1", cases[0].arm)
    assert row is not None and row.values["layer"] == [pytest.approx(202, abs=CALLS_MS)]
    assert WEIGHTS.blocks(report) and len(WEIGHTS.findings(report)) == 1


def test_three_layers_of_the_study_s_first_timeline_are_drawn_for_each_policy(
    driver: Driver,
) -> None:
    report = run_loop(
        WEIGHTS, driver, ["history", "auto_3", "auto"], [DRAWN.case], f"layers={LAYERS}"
    )
    drawn = [block for block in WEIGHTS.blocks(report) if isinstance(block, Timeline)]
    # In the order of the tables, which leave larger rings out.
    assert [each.title.partition(":")[0] for each in drawn] == ["history", "auto"]
    for each, milliseconds in zip(drawn, (220, 200), strict=True):
        lanes = {lane.name: lane.spans for lane in each.lanes}
        assert [span.name for span in lanes["ffn"]] == [f"compute {n}.ffn" for n in (3, 4, 5)]
        # Three layers, and the wait of the first one is in the window.
        assert lanes["ffn"][-1].end == pytest.approx(3 * milliseconds * 1e-3, abs=1e-3)
        assert lanes["copy"] and each.scale == 0.66


def test_a_part_of_the_sweep_runs_in_processes(driver: Driver) -> None:
    case = sweep.Swept(WAITS_5_MS, 1, "ffn", sweep.ON_DEMAND, False).case
    report = run_loop(SWEEP, driver, sweep.WAITS, [case], f"layers={LAYERS}")
    found = {row.subject: row.values["steady_layer"][0] / LAYERS for row in report.rows}
    # That is `history`, and `block_shallow`.
    assert found == pytest.approx({"event": 205, "block": 207}, abs=CALLS_MS)
