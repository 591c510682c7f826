"""offload() sends bf16 weights packed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vramkit.host.available import HostMemoryError

from .models import FAMILIES, example, stack, torch
from .offloads import MIB, assert_same, picture, small

if TYPE_CHECKING:
    from vramkit.driver import Driver

# The simulated GPU's memory serves PyTorch's CPU build only.
pytestmark = [pytest.mark.sim_only, pytest.mark.usefixtures("inference")]


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_weights_give_the_same_results(driver: Driver, family: str) -> None:
    model, inputs, _ = example(family)
    model.to(torch.bfloat16)
    if "pixel_values" in inputs:
        inputs["pixel_values"] = inputs["pixel_values"].to(torch.bfloat16)
    expected, before = model(**inputs).logits, picture(model)
    pointers = [tensor.data_ptr() for tensor in model.parameters()]
    budget = "5MiB" if family == "mixtral" else "3.8MiB"
    with small(model, budget, packing="bf16-12") as o:
        for _ in range(3):
            assert torch.equal(model(**inputs).logits, expected)
        report = o.report()
        assert report.sent_bytes < 0.8 * report.streamed_bytes
        assert report.staging_bytes > 0
        assert "packed to" in str(report)
        assert_same(before | {"hooks": None}, picture(model) | {"hooks": None})
    assert_same(before, picture(model))
    assert pointers == [tensor.data_ptr() for tensor in model.parameters()]


def test_the_report_says_what_packing_would_leave(driver: Driver) -> None:
    model = stack(*[800] * 8, dtype=torch.bfloat16)
    with small(model, "4MiB") as o:
        share = o.report().packed_share
    with small(model, "6MiB", packing="bf16-12") as o:
        found = o.report()
        assert found.packed_share is None
        assert share == pytest.approx(found.sent_bytes / found.streamed_bytes, abs=0.02)
    with small(stack(*[400] * 8), "3MiB") as o:
        assert o.report().packed_share is None


def test_weights_that_are_not_bf16_travel_as_they_are(driver: Driver) -> None:
    model = stack(*[400] * 8)
    x = torch.randn(2, 400)
    expected = model(x)
    with small(model, "3MiB", packing="bf16-12") as o:
        assert torch.equal(model(x), expected)
        assert o.report().sent_bytes == o.report().streamed_bytes


def test_what_packing_does_not_go_with(driver: Driver) -> None:
    model = stack(*[800] * 8, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="packing is 'zip'; it may be 'off', 'bf16-12' or 'auto'"):
        small(model, "4MiB", packing="zip")
    with torch.device("meta"):
        empty = torch.nn.Sequential(*[torch.nn.Linear(800, 800) for _ in range(7)])
    with pytest.raises(ValueError, match="packing and source cannot be used together"):
        small(empty, "9MiB", ring=4 * MIB, packing="bf16-12", source=lambda given: None)
    with small(model, "6MiB", packing="bf16-12"):
        model[3].weight.mul_(2)
        with pytest.raises(RuntimeError, match=r"3.weight was written after it was packed"):
            model(torch.randn(2, 800).to(torch.bfloat16))


def test_auto_packs_where_it_pays(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 800, dtype=torch.bfloat16)
    model = stack(*[800] * 8, dtype=torch.bfloat16)
    expected = model(x)

    def staging(budget: str, of: object = model, **settings: object) -> int:
        with small(of, budget, packing="auto", **settings) as o:
            if of is model:
                assert torch.equal(model(x), expected)
            return o.report().staging_bytes

    assert staging("6MiB") > 0
    assert staging("64MiB", ring=None) == 0  # all of it is resident
    assert staging("3.9MiB") == 0  # no room for packed chunks under way
    assert staging("3MiB", stack(*[400] * 8)) == 0  # not bf16
    for parameter in model.parameters():  # every bit pattern: nothing to save
        patterns = torch.randint(-(1 << 15), 1 << 15, parameter.shape, dtype=torch.int16)
        parameter.copy_(patterns.view(torch.bfloat16))
    with small(model, "6MiB", packing="auto") as o:
        assert o.report().staging_bytes == 0
    model = stack(*[800] * 8, dtype=torch.bfloat16)

    def none_left(nbytes: int, what: str) -> None:
        raise HostMemoryError(what)

    monkeypatch.setattr("vramkit.weights.store.require", none_left)
    assert staging("6MiB", stack(*[800] * 8, dtype=torch.bfloat16)) == 0
