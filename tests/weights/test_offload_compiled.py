"""offload() and torch.compile: the backend runs graphs as they are, what is in them matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vramkit.weights import UnsupportedModel

from .models import example, torch
from .offloads import small

if TYPE_CHECKING:
    from vramkit.driver import Driver

# The simulated GPU's memory serves PyTorch's CPU build only.
pytestmark = [pytest.mark.sim_only, pytest.mark.usefixtures("inference")]


@pytest.mark.parametrize("how", ["part", "layer", "layer in place", "model"])
def test_compiled_models(driver: Driver, how: str) -> None:
    """The backend runs the graphs as they are: what matters is what is in them."""
    model, inputs, _ = example("llama")
    expected = model(**inputs).logits
    torch._dynamo.reset()
    for number, layer in enumerate(model.model.layers):
        if how == "part":
            layer.mlp = torch.compile(layer.mlp, backend="eager")
        elif how == "layer":
            model.model.layers[number] = torch.compile(layer, backend="eager")
        elif how == "layer in place":
            layer.compile(backend="eager")
    with small(model) as o:
        called = torch.compile(model, backend="eager") if how == "model" else model
        for _ in range(2):
            assert torch.equal(called(**inputs).logits, expected)
        copies = o.stats().copies
        assert torch.equal(called(**inputs).logits, expected)
        streamed = o.manager.layout.resident.count(False)
        assert o.stats().copies - copies == streamed > 0
        assert o.stats().misses == 0
    assert torch.equal(called(**inputs).logits, expected)


def test_a_model_compiled_as_a_whole_is_refused(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    torch._dynamo.reset()
    with pytest.raises(UnsupportedModel, match="compiled as a whole"):
        small(torch.compile(model, backend="eager"))
    with small(model), pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(model, backend="eager", fullgraph=True)(**inputs)


def test_frozen_weights_in_compiled_code_are_refused(driver: Driver) -> None:
    config = pytest.importorskip("torch._inductor.config")
    model, inputs, _ = example("llama")
    expected = model(**inputs).logits
    with small(model):
        refused = pytest.raises(RuntimeError, match=r"torch._inductor.config.freezing is on")
        with config.patch(freezing=True), refused:
            model(**inputs)
        assert torch.equal(model(**inputs).logits, expected)
