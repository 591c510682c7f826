"""plan(): predicted times and bytes, and the alternatives beside them."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from vramkit.weights import POLICIES, BudgetError, Group, Plan, Policy, Prediction, Refused, plan
from vramkit.weights.planner.compare import make_plan
from vramkit.weights.planner.planning import make_request

from .headers import llama_layers, write_header

if TYPE_CHECKING:
    from vramkit.driver import Driver

pytestmark = pytest.mark.sim_only

MB, GIB = 10**6, 1 << 30
LAYER = 1_711_276_032  # of Llama-70B, bf16


def here(driver: Driver, model: Any, budget: Any, **settings: Any) -> Plan:
    """In this process, whose simulated GPU is the test's own."""
    told: list[str] = []
    made = make_plan(make_request(model, budget, **settings), told.append)
    assert told
    return made


@pytest.fixture
def twelve_layers(tmp_path: Path) -> Path:
    return write_header(tmp_path / "model.safetensors", llama_layers(12))


def study(layers: int = 80) -> tuple[list[Group], list[float]]:
    """Groups and compute times of the study of weight streaming."""
    sizes = {"attn": 100 * MB, "ffn": 150 * MB}
    groups = [Group(n, name, nbytes) for n in range(layers) for name, nbytes in sizes.items()]
    return groups, [0.080, 0.120] * layers


# Times


@pytest.mark.parametrize(
    ("tokens", "resident_ms", "streamed_ms"),
    [(4096, 144.7, 371.9), (16384, 667.2, 667.2), (1, 9.7, 371.9)],
)
def test_what_an_h200_measured_comes_out(
    driver: Driver, twelve_layers: Path, tokens: int, resident_ms: float, streamed_ms: float
) -> None:
    """Passes over 12 decoder layers of Llama-70B shape, all resident, and the bounds of the same
    passes streamed through two layers."""
    resident = here(driver, twelve_layers, "80%", tokens=tokens, compare=False).chosen
    assert resident.streamed_bytes == 0
    assert resident.pass_s * 1e3 == pytest.approx(resident_ms, rel=0.005)
    streamed = here(
        driver, twelve_layers, 2 * LAYER + GIB // 8, tokens=tokens, compare=False
    ).chosen
    assert streamed.ring_bytes <= 2 * LAYER + (2 << 20)
    assert streamed.pass_s * 1e3 == pytest.approx(streamed_ms, rel=0.01)


def test_the_study_is_bound_by_its_compute(driver: Driver) -> None:
    groups, seconds = study()
    made = here(driver, groups, "2GB", seconds=seconds, profile="weight-streaming", compare=False)
    chosen = made.chosen
    assert chosen.computed_s == pytest.approx(16.0)
    assert chosen.pass_s == pytest.approx(16.0, rel=1e-4)
    assert chosen.limit == "compute" and chosen.bound_s == chosen.computed_s
    assert made.compute_from == "given" and made.rates is None and made.tokens is None
    # Of the first pass only the first group is waited for, 100 MB at 5 GB/s.
    assert chosen.first_pass_s - chosen.pass_s == pytest.approx(0.020, rel=0.01)
    assert "compute-bound" in made.verdict


def test_a_slow_link_limits_and_is_used_in_full(driver: Driver) -> None:
    groups, _ = study(20)
    seconds = [0.001] * len(groups)
    made = here(driver, groups, "1GB", seconds=seconds, profile="weight-streaming", compare=False)
    chosen = made.chosen
    assert chosen.limit == "link"
    assert chosen.link_s == chosen.streamed_bytes / 5e9 == chosen.bound_s
    assert chosen.link_utilisation == pytest.approx(1.0, abs=0.01)
    assert made.verdict.startswith("link-bound: 5.00 GB/s of 5.00 GB/s; 4 GiB more would save ")


def test_bytes_on_the_card_stay_within_the_budget(driver: Driver, twelve_layers: Path) -> None:
    chosen = here(driver, twelve_layers, "8GiB", compare=False).chosen
    assert chosen.kept_bytes == 12 * 2 * 16384  # norms
    assert chosen.device_bytes == chosen.ring_bytes + chosen.resident_bytes + chosen.kept_bytes
    assert chosen.device_bytes <= chosen.budget == 8 * GIB
    assert 12 * LAYER - chosen.streamed_bytes <= chosen.resident_bytes


def test_a_measured_pass_takes_the_place_of_rates(driver: Driver, twelve_layers: Path) -> None:
    by_rates = here(driver, twelve_layers, "4GiB", compare=False)
    measured = here(driver, twelve_layers, "4GiB", pass_seconds=0.5, compare=False)
    assert by_rates.compute_from == "profile" and by_rates.rates is not None
    assert by_rates.rates.matmul_flops_per_s == 612.5e12
    assert measured.compute_from == "measured pass"
    assert measured.chosen.computed_s == pytest.approx(0.5)
    assert (measured.tokens, measured.batch) == (4096, 1)
    # A profile without rates divides it by bytes.
    divided = here(
        driver, twelve_layers, "4GiB", pass_seconds=0.5, profile="weight-streaming", compare=False
    )
    assert divided.chosen.computed_s == pytest.approx(0.5)
    assert divided.rates is None and divided.tokens is None


# Alternatives


def test_policies_stand_beside_each_other(driver: Driver) -> None:
    groups, _ = study(40)
    seconds = [0.001] * len(groups)
    made = here(driver, groups, "3GB", seconds=seconds, profile="weight-streaming")
    assert [row.policy for row in made.policies] == list(POLICIES)
    assert all(isinstance(row, Prediction) for row in made.policies)
    assert made.policies[0] == made.chosen
    rows = {row.policy: row for row in made.policies if isinstance(row, Prediction)}
    # Where the link limits, room for four layers ahead is lost to residents.
    assert rows["stage1"].ring_bytes > rows["auto"].ring_bytes
    assert rows["stage1"].pass_s > rows["auto"].pass_s


def test_a_policy_that_the_budget_does_not_allow_says_why(driver: Driver) -> None:
    groups, seconds = study(12)
    made = here(driver, groups, "600MB", seconds=seconds, profile="weight-streaming")
    rows = {row.policy: row for row in made.policies}
    assert isinstance(rows["auto"], Prediction)
    refused = rows["stage2"]
    assert isinstance(refused, Refused)
    assert "with this depth 1.16 GiB must be on the card at once" in refused.why


def test_policies_for_groups_that_a_model_does_not_have_are_refused(driver: Driver) -> None:
    groups = [Group(layer, "mixer", 50 * MB) for layer in range(8)]
    made = here(driver, groups, "200MB", seconds=[0.01] * 8)
    refused = [row.policy for row in made.policies if isinstance(row, Refused)]
    assert refused == [name for name in POLICIES if name != "auto"]


def test_the_best_ring_is_no_slower_than_the_usual_one(driver: Driver) -> None:
    groups = [
        Group(layer, name, nbytes)
        for layer in range(12)
        for name, nbytes in (("attn", 301_989_888), ("ffn", 1_409_286_144))
    ]
    seconds = [0.002, 0.010] * 12
    made = here(driver, groups, "8GiB", seconds=seconds)
    # One layer lets the card wait, two leave less to residents than one and a half.
    assert made.best_split == 1
    best = made.splits[made.best_split]
    assert made.chosen in made.splits and len(made.splits) > 2
    assert best.pass_s <= made.chosen.pass_s
    assert min(row.pass_s for row in made.splits) >= best.pass_s * 0.999
    assert all(row.budget == made.chosen.budget for row in made.splits)
    # What it advises is what it predicted.
    again = here(driver, groups, "8GiB", seconds=seconds, ring=best.ring, compare=False).chosen
    assert again.ring_bytes == best.ring_bytes
    assert again.pass_s == pytest.approx(best.pass_s, rel=1e-6)


def test_more_memory_is_worth_what_the_table_says(driver: Driver, twelve_layers: Path) -> None:
    made = here(driver, twelve_layers, "8GiB", tokens=1)
    budgets = [row.budget for row in made.budgets]
    assert budgets == sorted(set(budgets)) and 8 * GIB in budgets and 12 * GIB in budgets
    times = [row.pass_s for row in made.budgets]
    assert all(more <= less * 1.001 for less, more in pairwise(times))
    assert made.budgets[-1].streamed_bytes == 0
    assert all(row.streamed_bytes for row in made.budgets[:-1])


def test_no_budget_of_the_table_exceeds_the_card(driver: Driver, tmp_path: Path) -> None:
    path = write_header(tmp_path / "model.safetensors", llama_layers(20))
    made = here(driver, path, "100%", tokens=1, profile="pcie4-24gb")
    assert made.budgets[-1] == made.chosen
    assert made.chosen.budget == 24564 << 20
    assert "more would save" not in made.verdict


def test_a_model_that_fits_is_resident(driver: Driver) -> None:
    groups, seconds = study(4)
    made = here(driver, groups, "2GB", seconds=seconds)
    assert made.chosen.ring_bytes == made.chosen.streamed_bytes == 0
    assert made.policies == made.splits == () and made.best_split is None
    assert made.verdict.startswith("all weights are resident")


def test_the_timeline_has_the_first_layers_of_a_steady_pass(driver: Driver) -> None:
    groups, seconds = study(12)
    made = here(driver, groups, "600MB", seconds=seconds, profile="weight-streaming")
    assert made.timeline is not None
    lanes = {lane.name: lane.spans for lane in made.timeline.lanes}
    assert list(lanes) == ["copy", "attn", "ffn"]
    names = [span.name for name in ("attn", "ffn") for span in lanes[name]]
    assert names == [f"compute {n}.{name}" for name in ("attn", "ffn") for n in range(5)]
    assert made.timeline.scale == pytest.approx(5 * 0.2, rel=1e-3)  # nothing is waited for
    resident = here(driver, groups, "80%", seconds=seconds)
    assert resident.timeline is None


def test_a_policy_of_ones_own(driver: Driver) -> None:
    groups, seconds = study(12)
    own = Policy(depth=2, issue_at={"attn": "end", "ffn": "end"})
    made = here(driver, groups, "2GB", seconds=seconds, policy=own, compare=False)
    assert made.chosen.policy == "own"


# What cannot be planned


def test_bad_arguments_are_refused_before_a_model_is_read() -> None:
    for settings, message in [
        ({"budget": "24 GIGS"}, "budget is '24 GIGS'; it may be"),
        ({"policy": "fast"}, "policy is 'fast'; it may be"),
        ({"tokens": 0}, "tokens is 0; it may be"),
        ({"batch": -1}, "batch is -1; it may be"),
        ({"ring": 0}, "ring is 0; it may be"),
        ({"pass_seconds": 0.0}, "pass_seconds is 0.0; it may be"),
        ({"pass_seconds": 1.0, "seconds": [1.0]}, "exclude each other"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_request("/there/is/no/model", **settings)


def test_times_must_be_as_many_as_groups() -> None:
    groups, seconds = study(2)
    with pytest.raises(ValueError, match="there are 4 groups and 3 compute times"):
        make_request(groups, "1GB", seconds=seconds[1:])
    with pytest.raises(ValueError, match="need seconds"):
        make_request(groups, "1GB")


def test_settings_without_effect_are_refused(driver: Driver, twelve_layers: Path) -> None:
    groups, seconds = study(2)
    with pytest.raises(ValueError, match="tokens and batch have no effect: the compute time"):
        here(driver, groups, "1GB", seconds=seconds, tokens=1)
    with pytest.raises(ValueError, match="tokens and batch have no effect: profile weight-"):
        here(driver, twelve_layers, "8GiB", pass_seconds=1, batch=2, profile="weight-streaming")


def test_a_profile_without_rates_asks_for_a_measured_pass(
    driver: Driver, twelve_layers: Path
) -> None:
    with pytest.raises(ValueError, match=r"weight-streaming has no rates of compute; .*--pass-ms"):
        here(driver, twelve_layers, "8GiB", profile="weight-streaming")


def test_a_budget_larger_than_the_card_is_refused(driver: Driver, twelve_layers: Path) -> None:
    with pytest.raises(BudgetError, match=r"budget is 30 GiB; the card of profile pcie4-24gb has"):
        here(driver, twelve_layers, "30GiB", profile="pcie4-24gb")


# The process of its own


def test_a_plan_loads_no_driver_into_the_process_that_asks() -> None:
    program = (
        "from vramkit.weights import BudgetError, Group, plan\n"
        "groups = [Group(n, 'attn', 100_000_000) for n in range(8)]\n"
        "seconds, told = [0.01] * 8, []\n"
        "made = plan(groups, '400MB', seconds=seconds, compare=False, progress=told.append)\n"
        "assert made.simulated and made.profile == 'h200' and told == ['the plan']\n"
        "try:\n"
        "    plan(groups, '50MB', seconds=seconds)\n"
        "except BudgetError as error:\n"
        "    assert 'too little for these weights' in str(error)\n"
        "else:\n"
        "    raise AssertionError('no BudgetError')\n"
        "assert 'libcuda.so.1' not in open('/proc/self/maps').read()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("layers", [2, 2000])  # the second does not fit into a pipe
def test_a_process_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, layers: int) -> None:
    groups, seconds = study(layers)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="ended with status 1"):
        plan(groups, "1GB", seconds=seconds)


def test_a_plan_survives_json(driver: Driver) -> None:
    groups, seconds = study(12)
    made = here(driver, groups, "600MB", seconds=seconds, profile="weight-streaming")
    assert msgspec.json.decode(msgspec.json.encode(made), type=Plan) == made


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "plan.md"
    (example,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(example, page.name, "exec"), {})
    verdict, of_bound, *rows = capsys.readouterr().out.splitlines()
    assert verdict.startswith("link-bound: ")
    assert 1.0 <= float(of_bound) < 1.01
    assert len(rows) > 5
