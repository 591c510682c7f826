"""A model while it is offloaded: read, written, moved, interrupted, called in another order."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from .host_reads import HostReads
from .models import Denoiser, denoised, example, stack, torch
from .offloads import MIB, assert_same, picture, small

if TYPE_CHECKING:
    from pathlib import Path

    from vramkit.driver import Driver

# The simulated GPU's memory serves PyTorch's CPU build only.
pytestmark = [pytest.mark.sim_only, pytest.mark.usefixtures("inference")]


def test_what_is_read_outside_of_forward_is_right(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with small(model):
        for _ in range(2):
            model(**inputs)
            for name, tensor in model.state_dict().items():
                assert torch.equal(tensor, before[name]), name


def test_weights_written_outside_of_forward_count(driver: Driver) -> None:
    model = stack(400, 400, 400, 400, 400, 400, 400)
    x = torch.randn(2, 400)
    with small(model, "3MiB", ring=2 * MIB) as o:
        assert any(o.manager.layout.resident) is False
        model(x)
        for layer in model:
            layer.weight.mul_(2)
        doubled = model(x)
    assert torch.equal(model(x), doubled)
    with small(model, "100%", ring=None):
        for layer in model:
            layer.weight.mul_(0.5)
        halved = model(x)
    assert torch.equal(model(x), halved)


@pytest.mark.parametrize("change", ["to", "replaced"])
def test_a_weight_that_was_moved_or_replaced_is_an_error(driver: Driver, change: str) -> None:
    model = stack(400, 400, 400, 400, 400, 400, 400)
    x = torch.randn(2, 400)
    expected = model(x)
    with small(model, "3MiB"):
        if change == "to":
            model.double()
        else:
            model[3].weight = torch.nn.Parameter(torch.zeros(400, 400))
        with pytest.raises(RuntimeError, match=r"was moved or replaced while the model is offl"):
            model(x)
    if change == "to":
        assert torch.equal(model(x), expected)


def test_a_weight_that_forward_writes_is_an_error(driver: Driver) -> None:
    class Writes(torch.nn.Linear):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            self.weight.add_(1)
            return super().forward(x)

    model = torch.nn.Sequential(stack(400, 400), Writes(400, 400), *stack(400, 400, 400, 400))
    with small(model, "3MiB"), pytest.raises(RuntimeError, match=r"1.weight was written in forw"):
        model(torch.randn(2, 400))


def test_a_forward_that_raises_leaves_it_usable(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    expected = model(**inputs).logits
    before = picture(model)
    with small(model):
        fails = model.model.layers[3].mlp.up_proj.register_forward_pre_hook(_raise)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                model(**inputs)
        fails.remove()
        assert torch.equal(model(**inputs).logits, expected)
    assert_same(before, picture(model))


def _raise(*args: object) -> None:
    raise ZeroDivisionError


def test_an_exception_in_the_with_statement_undoes_it(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    before = picture(model)
    with pytest.raises(ZeroDivisionError), small(model):
        model(**inputs)
        _raise()
    assert_same(before, picture(model))


def test_hooks_of_others_are_kept(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    seen: list[bool] = []
    weight = model.model.layers[2].mlp.up_proj.weight
    values = weight.clone()
    model.model.layers[2].mlp.register_forward_pre_hook(
        lambda module, args: seen.append(torch.equal(module.up_proj.weight, values))
    )
    with small(model):
        model(**inputs)
    model(**inputs)
    assert seen == [True, True]


def test_layers_called_in_another_order_are_learnt(driver: Driver) -> None:
    model = stack(*[400] * 9)
    x = torch.randn(2, 400)
    backwards = [model[number] for number in (7, 5, 3, 1, 6, 4, 2, 0)]

    class Turned(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(model)

        def forward(self, x: Any) -> Any:
            for layer in backwards:
                x = layer(x)
            return x

    turned = Turned()
    expected = turned(x)
    with small(turned, "3MiB") as o:
        misses = []
        for _ in range(4):
            before = o.stats().misses
            assert torch.equal(turned(x), expected)
            misses.append(o.stats().misses - before)
        assert misses[0] > 0
        assert misses[2:] == [0, 0]


def test_save_pretrained_writes_the_right_tensors(driver: Driver, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model, inputs, _ = example("llama")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with small(model, ring=None) as o:
        assert len(set(o.manager.layout.resident)) == 2  # some are streamed, some are resident
        model(**inputs)
        model.save_pretrained(tmp_path)
    saved = safetensors.load_file(tmp_path / "model.safetensors")
    assert saved.keys() == before.keys()
    assert all(torch.equal(saved[name], before[name]) for name in before)


def test_repeated_calls_of_a_diffusion_model(driver: Driver) -> None:
    """Convolutions, a time step for every block, and tensors that skip blocks."""
    model, noise = Denoiser(), torch.randn(2, 3, 16, 16)
    expected, before = denoised(model, noise), picture(model)
    with small(model, "5MiB", ring=None) as o:
        for _ in range(2):
            assert torch.equal(denoised(model, noise), expected)
        with HostReads(o._store.addresses[0], o._store.nbytes) as reads:
            model(noise, 3)
        assert reads.found == []
        assert o.report().streamed_bytes > 0
        assert o.stats().misses <= 1  # the very first group
    assert_same(before, picture(model))


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize(
    "name", ["", "model.layers.2", "model.layers.2.mlp", "model.layers.2.mlp.up_proj", "lm_head"]
)
def test_a_forward_that_others_have_replaced(driver: Driver, name: str, when: str) -> None:
    """On the instance, as accelerate's hooks do."""
    model, inputs, _ = example("llama")
    expected = model(**inputs).logits
    module = model.get_submodule(name)
    inner, calls = module.forward, []

    def forward(module: Any, *arguments: Any, **keywords: Any) -> Any:
        calls.append(module)
        return inner(*arguments, **keywords)

    replaced = functools.update_wrapper(functools.partial(forward, module), inner)
    if when == "before":
        module.forward = replaced
    with small(model) as o:
        module.forward = replaced
        for _ in range(2):
            assert torch.equal(model(**inputs).logits, expected)
        with HostReads(o._store.addresses[0], o._store.nbytes) as reads:
            assert torch.equal(model(**inputs).logits, expected)
        assert reads.found == []
        assert o.report().outside.copies == 0  # they come with their part
    assert calls == [module] * 3
    assert vars(module)["forward"] is replaced
    assert torch.equal(model(**inputs).logits, expected)
