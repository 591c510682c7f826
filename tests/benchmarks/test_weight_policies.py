"""The study of weight streaming: its arithmetic on fewer layers, and what was published of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from weight_policies import main
from weight_policies_document import Document, Neighbour, text
from weight_policies_run import (
    AS_COMPUTE,
    LINK_BOUND,
    PROFILE_RATE,
    WAITS_5_MS,
    WAITS_20_MS,
    Case,
    all_policies,
    driver_calls,
    jitter,
    measure,
    times,
)
from weight_policies_tables import STUDY_MS, find, tables

from vramkit.weights import POLICIES

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "benchmarks" / "results" / "weight_policies_simulated.json"

LAYERS = 10
CALLS_MS = 0.05
"""A layer: what driver calls and the latencies of copies and kernels add to the arithmetic."""


@pytest.fixture(scope="module")
def published() -> Document:
    return msgspec.json.decode(PUBLISHED.read_bytes(), type=Document)


@pytest.mark.parametrize(
    ("case", "ms_a_layer"),
    [
        # 2 ms of ensure, which a host that runs ahead hides.
        (Case("history1", PROFILE_RATE, "layer"), 202),
        (Case("first_step", PROFILE_RATE, "layer"), 202),
        (Case("stage1", PROFILE_RATE, "layer"), 200),
        (Case("auto", PROFILE_RATE, "group"), 200),
        # The ffn group on demand: its 150 MB come behind attention, beside it, or partly so.
        (Case("history", PROFILE_RATE, "group"), 80 + 30 + 120),
        (Case("history", PROFILE_RATE, "layer"), 200),
        (Case("history", WAITS_5_MS, "layer"), 205),
        (Case("history", WAITS_20_MS, "layer"), 220),
        (Case("block_shallow", WAITS_5_MS, "layer"), 207),
        # 250 MB a layer: as fast as compute, and slower.
        (Case("auto", AS_COMPUTE), 200),
        (Case("stage2", LINK_BOUND, "group"), 250),
    ],
)
@pytest.mark.usefixtures("driver")
@pytest.mark.sim_only
def test_a_steady_pass_takes_what_the_arithmetic_says(
    case: Case, ms_a_layer: float, tmp_path: Path
) -> None:
    case = msgspec.structs.replace(case, layers=LAYERS)
    _, steady = times(case, tmp_path)
    assert steady == pytest.approx(LAYERS * ms_a_layer, abs=LAYERS * CALLS_MS)
    assert steady >= case.bound * 1e3


@pytest.mark.sim_only
@pytest.mark.usefixtures("driver")
def test_bytes_by_phase_are_those_of_the_study_in_the_first_layer(tmp_path: Path) -> None:
    shallow = measure(Case("history", host="group", layers=LAYERS), tmp_path)
    deep = measure(Case("stage2", host="group", layers=LAYERS), tmp_path)
    assert shallow.first_layer_copied_mb == shallow.copied_mb == {"attn": 0, "ffn": 100}
    assert deep.first_layer_copied_mb == pytest.approx({"attn": 400, "ffn": 600}, abs=0.5)
    assert sum(deep.copied_mb.values()) == pytest.approx(250, abs=0.5)
    assert (shallow.misses, deep.misses) == (LAYERS, 0)


@pytest.mark.sim_only
@pytest.mark.usefixtures("driver")
def test_a_neighbour_is_felt_most_by_a_small_ring_and_repeats_exactly(tmp_path: Path) -> None:
    neighbour = Neighbour(mean_gap_ms=500)
    small, again, large = (
        jitter(Case("auto", WAITS_20_MS, ring_layers=n, layers=LAYERS), neighbour, 6, tmp_path, 2)
        for n in (2, 2, 5)
    )
    assert len(small.most_by_seed) == 2 and small.most_by_seed[0] != small.most_by_seed[1]
    assert small == again
    assert small.least < small.most
    assert large.most < small.most


@pytest.mark.sim_only
@pytest.mark.usefixtures("driver")
def test_a_steady_pass_allocates_nothing_and_waits_only_at_its_ends(tmp_path: Path) -> None:
    calls = driver_calls(Case("auto", layers=LAYERS), tmp_path)
    assert calls["cuMemcpyHtoDAsync_v2"] == 5 * LAYERS  # 2 and 3 chunks of at most 64 MiB
    assert calls["cuStreamSynchronize"] == 2
    assert not [name for name in calls if "Create" in name or "Alloc" in name]


def test_the_sweep_has_every_policy_once() -> None:
    policies = list(all_policies())
    assert len({msgspec.json.encode(policy) for policy in policies}) == len(policies) == 144


def test_a_folder_that_is_not_there_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        main(["--json", str(tmp_path / "nowhere" / "study.json")])
    assert "there is no folder" in capsys.readouterr().err


# What was published


def test_the_file_has_every_preset_and_reads_as_it_was_written(published: Document) -> None:
    assert text(published) == PUBLISHED.read_text("utf-8")
    assert published.simulated and published.profile == "weight-streaming"
    assert {each.policy for each in published.presets} == set(POLICIES)
    assert set(STUDY_MS) <= set(POLICIES)


def test_a_second_compute_stream_changes_no_total(published: Document) -> None:
    doubled = [each for each in published.presets if each.streams == 2]
    assert len(doubled) == 3 * len(POLICIES)
    for each in doubled:
        one = find(published, each.policy, each.link, each.host)
        assert each.result.steady_ms == pytest.approx(one.result.steady_ms, abs=1)


def test_the_page_shows_the_tables_of_the_file(published: Document) -> None:
    page = (ROOT / "docs" / "weights.md").read_text("utf-8")
    assert [name for name, table in tables(published).items() if table not in page] == []
