"""Adapters that are put into a model while it is offloaded, and small weights that are moved: right
values, or one error that names the tensor.

On the simulated GPU the tensors of the card are CPU tensors, and the meta device stands for a place
that is not the card.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from vramkit.weights.model import analyse
from vramkit.weights.unstreamed import Unstreamed

from .adapters import adapt, remove
from .models import example, stack, torch
from .offloads import assert_same, picture, small

if TYPE_CHECKING:
    from vramkit.driver import Driver

# The simulated GPU's memory serves PyTorch's CPU build only.
pytestmark = [pytest.mark.sim_only, pytest.mark.usefixtures("simulated")]

ELSEWHERE = torch.device("meta")


@pytest.mark.parametrize("call", ["model", "forward"])
def test_adapters_that_are_not_on_the_card_are_an_error(driver: Driver, call: str) -> None:
    """peft creates them where the weight beside them is, and calls the forward of the model."""
    model, inputs, _ = example("llama")
    before = picture(model)
    with torch.no_grad(), small(model):
        expected = model(**inputs).logits
        adapt(model, ELSEWHERE)
        called = model if call == "model" else model.forward
        with pytest.raises(
            RuntimeError,
            match=r"layers.0.self_attn.q_proj.lora_A.weight \(and \d+ more\) was added while the "
            r"model is offloaded, and is on meta, not on cpu: add adapters before offload\(\), or ",
        ):
            called(**inputs)
        remove(model)
        assert torch.equal(model(**inputs).logits, expected)
    assert_same(before, picture(model))


def test_adapters_on_the_card_can_be_added_and_removed(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    model.requires_grad_(False)
    resident = copy.deepcopy(model)
    adapt(resident, "cpu")

    def gradients(trained: Any) -> list[Any]:
        trained.zero_grad()
        trained(**inputs, labels=inputs["input_ids"]).loss.backward()
        return [tensor.grad.clone() for tensor in trained.parameters() if tensor.requires_grad]

    expected, adapted = model(**inputs).logits, resident(**inputs).logits
    assert not torch.equal(expected, adapted)
    with small(model) as o:
        adapt(model, o._memory.device)
        for _ in range(2):
            assert torch.equal(model(**inputs).logits, adapted)
        found, wanted = gradients(model), gradients(resident)
        assert len(found) == 12
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        remove(model)
        assert torch.equal(model(**inputs).logits, expected)
        adapt(model, o._memory.device)
    assert torch.equal(model(**inputs).logits, adapted)


@pytest.mark.parametrize(
    ("moved", "name"), [("norm", "norm.weight"), ("rotary_emb", "rotary_emb.inv_freq")]
)
def test_a_small_weight_that_was_moved_is_an_error(driver: Driver, moved: str, name: str) -> None:
    """It stays on the card, and .cpu() moves it while streamed ones are in host memory anyway."""
    model, inputs, _ = example("llama")
    with torch.no_grad(), small(model):
        model(**inputs)
        model.model.get_submodule(moved).to(ELSEWHERE)
        with pytest.raises(
            RuntimeError,
            match=rf"model.{name} .*was moved or replaced while the model is offloaded, and is on "
            r"meta, not on cpu; close the Offload first",
        ):
            model(**inputs)


def test_a_new_buffer_may_be_anywhere(driver: Driver) -> None:
    """Modules that add one bring it along; if they do not, PyTorch's error gets a note."""

    class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined]
        fails = False

        def forward(self, x: Any) -> Any:
            if self.fails:
                raise RuntimeError("Expected all tensors to be on the same device, but ...")  # CUDA
            return x * torch.ones_like(self.scale, device=x.device)

    model, x = stack(*[400] * 8).append(Scaled()), torch.randn(2, 400)
    model[-1].scale = torch.ones(400)
    with torch.no_grad(), small(model, "3MiB"):
        del model[-1].scale
        model[-1].register_buffer("scale", torch.ones(400, device=ELSEWHERE))
        model(x)
        model[-1].fails = True
        with pytest.raises(RuntimeError, match="same device") as raised:
            model(x)
        (note,) = raised.value.__notes__
        assert "the buffer 7.scale is on meta, not on cpu: move it there" in note


def test_streamed_weights_are_elsewhere_and_others_are_not() -> None:
    """As on a card: here the meta device is the card, and the CPU is not."""
    model = stack(400, 400).append(torch.nn.Linear(400, 4, device=ELSEWHERE))
    parsed = analyse(torch, model, small=100_000, meta=True)
    assert [weight.names[0] for weight in parsed.kept] == ["1.weight", "1.bias"]
    unstreamed = Unstreamed(parsed, ELSEWHERE)
    unstreamed.check(model)
    model[0].scale = torch.nn.Parameter(torch.ones(400))
    with pytest.raises(
        RuntimeError, match=r"^0.scale was added .* and is on cpu, not on meta: add"
    ):
        unstreamed.check(model)
    model[0].scale = torch.nn.Parameter(torch.ones(400, device=ELSEWHERE))
    unstreamed.check(model)
    # A number of its own that a module counts with may come from the host.
    counting = stack(400, 400)
    counting[0].register_buffer("steps", torch.zeros((), device=ELSEWHERE))
    numbers = Unstreamed(analyse(torch, counting, small=100_000, meta=True), ELSEWHERE)
    counting[0].steps = torch.tensor(1.0)
    numbers.check(counting)
    model[1].weight = torch.nn.Parameter(torch.ones(4, 400))
    with pytest.raises(
        RuntimeError, match=r"^1.weight was moved or replaced .* on cpu, not on met"
    ):
        unstreamed.check(model)
