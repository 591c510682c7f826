"""offload(): a PyTorch module in a part of the card, bit-identical, and undone on exit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vramkit.weights.hooks import map_tensors

from .models import FAMILIES, example, torch
from .offloads import MIB, assert_same, picture, small

if TYPE_CHECKING:
    from vramkit.driver import Driver

# The simulated GPU's memory serves PyTorch's CPU build only.
pytestmark = [pytest.mark.sim_only, pytest.mark.usefixtures("inference")]


@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_those_of_the_resident_model(driver: Driver, family: str) -> None:
    model, inputs, _ = example(family)
    expected = model(**inputs).logits
    before = picture(model)
    with small(model) as o:
        for _ in range(3):
            assert torch.equal(model(**inputs).logits, expected)
        assert sum(o.manager.layout.resident) < len(o.manager.layout.groups) - 4
        assert o.stats().misses == 0
    assert_same(before, picture(model))
    assert torch.equal(model(**inputs).logits, expected)


@pytest.mark.parametrize("packing", ["off", "bf16-12"])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "vit"])
def test_generate_with_its_cache(driver: Driver, family: str, packing: str) -> None:
    model, inputs, _ = example(family)
    inputs.pop("decoder_input_ids", None)
    budget = "4.2MiB"
    if packing != "off":
        model.to(torch.bfloat16)
        budget = "5MiB" if family == "mixtral" else "3.8MiB"
    settings = {"max_new_tokens": 32, "do_sample": False}
    expected = model.generate(**inputs, **settings)
    with small(model, budget, packing=packing) as o:
        assert torch.equal(model.generate(**inputs, **settings), expected)
        report = o.report()
        assert report.sent_bytes > 0
        assert (report.sent_bytes < report.streamed_bytes) is (packing != "off")


@pytest.mark.parametrize("policy", ["auto", "history1", "history", "stage2", "block_shallow"])
def test_every_policy_gives_the_same_result(driver: Driver, policy: str) -> None:
    model, inputs, _ = example("llama", num_hidden_layers=12)
    expected = model(**inputs).logits
    with small(model, "7.5MiB", ring=None, policy=policy) as o:
        for _ in range(3):
            assert torch.equal(model(**inputs).logits, expected)
        assert o.report().streamed_bytes > 0


def test_everything_resident(driver: Driver) -> None:
    model, inputs, _ = example("gpt2")
    expected = model(**inputs).logits
    with small(model, "100%", ring=None) as o:
        assert torch.equal(model(**inputs).logits, expected)
        copies = o.stats().copies
        assert torch.equal(model(**inputs).logits, expected)
        assert o.stats().copies == copies == len(o.manager.layout.groups)


def test_inference_mode(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    expected = model(**inputs).logits
    with torch.inference_mode(), small(model):
        assert torch.equal(model(**inputs).logits, expected)
        assert torch.equal(model(**inputs).logits, expected)
    assert torch.equal(model(**inputs).logits, expected)


def test_a_steady_pass_waits_on_the_host_only_where_pytorch_computes_there(driver: Driver) -> None:
    assert driver.sim is not None
    model, inputs, _ = example("llama")
    with small(model) as o:
        for _ in range(2):
            model(**inputs)
        driver.sim.reset_call_counts()
        waits = o._memory.synchronisations  # type: ignore[attr-defined]
        model(**inputs)
        calls = driver.sim.call_counts()
        waits = o._memory.synchronisations - waits  # type: ignore[attr-defined]
    assert waits == len(o.manager.layout.groups)
    assert calls.pop("cuStreamSynchronize") == waits
    others = ("Synchronize", "Create", "Destroy", "Alloc", "Free", "Query", "Host")
    driver_calls = [name for name in calls if name.startswith("cu")]
    assert not [name for name in driver_calls if any(each in name for each in others)]


def test_the_report_says_what_is_where(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    with small(model) as o:
        model(**inputs)
        report = o.report()
        assert report.budget == int(4.2 * MIB)
        assert report.resident_bytes + report.ring_bytes + report.kept_bytes <= report.budget
        assert report.host_bytes == sum(group.nbytes for group in o.manager.layout.groups)
        assert report.pass_s is None  # PyTorch computed on the host
        assert "none was timed yet" in str(report)
        assert "simulated" in str(report)
    assert o.report().streamed_bytes == report.streamed_bytes


def test_tensors_in_arguments_and_results_are_moved() -> None:
    """On a card arguments come to it, and results go back: here "moved" is doubled."""
    outputs = pytest.importorskip("transformers.modeling_outputs")
    cache = object()
    one = torch.ones(1)
    given = {"ids": one, "many": [one, (one, 3)], "cache": cache, "none": None}
    moved = map_tensors(torch, lambda tensor: tensor * 2, given)
    assert moved["cache"] is cache
    assert [moved["ids"], moved["many"][0], moved["many"][1][0]] == [2, 2, 2]
    assert moved["many"][1][1] == 3
    result = outputs.BaseModelOutput(last_hidden_state=one, hidden_states=(one,))
    changed = map_tensors(torch, lambda tensor: tensor * 2, result)
    assert type(changed) is type(result)
    assert changed.last_hidden_state == changed.hidden_states[0] == 2
    assert map_tensors(torch, lambda tensor: tensor, given) is given


def test_a_prediction_before_the_run(driver: Driver) -> None:
    """Compute far longer than the copies: a pass takes as long as it computes."""
    model, inputs, _ = example("llama")
    with small(model) as o:
        model(**inputs)
        groups = len(o.manager.layout.groups)
        predicted = o.predict(seconds=[1e-3] * groups)
        assert predicted.streamed_bytes > 0
        assert predicted.limit == "compute"
        assert predicted.pass_s == pytest.approx(groups * 1e-3, rel=0.05)
        with pytest.raises(ValueError, match="no pass was timed yet"):
            o.predict()
        with pytest.raises(ValueError, match=f"there are {groups} groups and 1 compute times"):
            o.predict(seconds=[1.0])
