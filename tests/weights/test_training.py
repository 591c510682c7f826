"""Adapters are trained over frozen weights that are streamed: the same gradients, bit for bit."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from vramkit.weights.backward import Backward

from .models import example, stack, torch
from .offloads import small

if TYPE_CHECKING:
    from vramkit.driver import Driver

MIB = 1 << 20
pytestmark = [pytest.mark.sim_only, pytest.mark.usefixtures("simulated")]


class Adapted(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A frozen layer and two small factors that are trained."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = torch.nn.Parameter(torch.randn(4, layer.in_features) / 10)
        self.up = torch.nn.Parameter(torch.randn(layer.out_features, 4) / 10)

    def forward(self, x: Any) -> Any:
        return self.layer(x) + x @ self.down.t() @ self.up.t()


class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = Adapted(torch.nn.Linear(width, width))
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)
        ).requires_grad_(False)
        self.norm = torch.nn.LayerNorm(width).requires_grad_(False)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, checkpoint: str = "off", width: int = 200) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Block(width) for _ in range(8))
        self.checkpoint = checkpoint

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            if self.checkpoint == "off":
                x = layer(x)
            else:
                reentrant = self.checkpoint == "reentrant"
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant)
        return x


def gradients(model: Any, x: Any) -> dict[str, Any]:
    model.zero_grad()
    model(x).square().mean().backward()
    named = model.named_parameters()
    return {name: tensor.grad.clone() for name, tensor in named if tensor.grad is not None}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("packing", ["off", "bf16-12"])
@pytest.mark.parametrize("checkpoint", ["off", "reentrant", "not reentrant"])
def test_gradients_are_those_of_the_resident_model(
    driver: Driver, checkpoint: str, packing: str
) -> None:
    dtype, width = (torch.float32, 200) if packing == "off" else (torch.bfloat16, 284)
    model = Model(checkpoint, width).to(dtype)
    resident = copy.deepcopy(model)
    x = torch.randn(3, width, dtype=dtype, requires_grad=checkpoint == "reentrant")
    expected = gradients(resident, x)
    assert len(expected) == 16
    with small(model, packing=packing) as o:
        misses = []
        for _ in range(4):
            before = o.stats().misses
            assert same(gradients(model, x), expected)
            misses.append(o.stats().misses - before)
    assert misses[2:] == [0, 0]  # the order of backward is learnt
    assert same(gradients(model, x), expected)


def test_without_the_hooks_gradients_are_wrong_and_nothing_says_so(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why they are there: autograd keeps views of memory that holds other weights by then."""
    model = Model()
    resident = copy.deepcopy(model)
    x = torch.randn(3, 200)
    expected = gradients(resident, x)
    monkeypatch.setattr(Backward, "saved_tensors", lambda self, groups: nullcontext())
    with small(model):
        assert not same(gradients(model, x), expected)


def test_a_step_of_an_optimizer(driver: Driver) -> None:
    model = Model()
    resident = copy.deepcopy(model)
    x = torch.randn(3, 200)

    def train(trained: Any) -> dict[str, Any]:
        adapters = [tensor for tensor in trained.parameters() if tensor.requires_grad]
        optimizer = torch.optim.AdamW(adapters, lr=0.01)
        for _ in range(3):
            gradients(trained, x)
            optimizer.step()
        return {name: tensor.clone() for name, tensor in trained.state_dict().items()}

    expected = train(resident)
    with small(model):
        assert same(train(model), expected)
    assert same(model.state_dict(), expected)


@pytest.mark.parametrize("packing", ["off", "bf16-12"])
def test_adapters_of_a_language_model(driver: Driver, packing: str) -> None:
    model, inputs, _ = example("llama")
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
    for name, tensor in model.named_parameters():
        tensor.requires_grad_(name.endswith((".down", ".up")))
    model.to(torch.float32 if packing == "off" else torch.bfloat16)
    resident = copy.deepcopy(model)

    def step(trained: Any) -> dict[str, Any]:
        trained.zero_grad()
        trained(**inputs, labels=inputs["input_ids"]).loss.backward()
        named = trained.named_parameters()
        return {name: tensor.grad.clone() for name, tensor in named if tensor.grad is not None}

    expected = step(resident)
    assert len(expected) == 12
    with small(model, "4.2MiB" if packing == "off" else "3.8MiB", packing=packing) as o:
        for _ in range(3):
            assert same(step(model), expected)
        report = o.report()
        assert (report.sent_bytes < report.streamed_bytes) is (packing != "off")


def test_a_graph_that_is_kept_is_used_twice(driver: Driver) -> None:
    model = Model()
    resident = copy.deepcopy(model)
    x = torch.randn(3, 200)

    def twice(trained: Any) -> dict[str, Any]:
        trained.zero_grad()
        loss = trained(x).square().mean()
        loss.backward(retain_graph=True)
        with torch.no_grad():
            trained(2 * x)  # the ring holds other weights in between
        loss.backward()
        named = trained.named_parameters()
        return {name: tensor.grad.clone() for name, tensor in named if tensor.grad is not None}

    expected = twice(resident)
    with small(model):
        assert same(twice(model), expected)


def test_a_backward_pass_that_raises_leaves_it_usable(driver: Driver) -> None:
    model = Model()
    x = torch.randn(3, 200)
    expected = gradients(copy.deepcopy(model), x)

    def fails(gradient: Any) -> None:
        raise ZeroDivisionError

    with small(model):
        y = model.layers[0](x)
        y.register_hook(fails)
        for layer in model.layers[1:]:
            y = layer(y)
        with pytest.raises(ZeroDivisionError):
            y.sum().backward()
        assert same(gradients(model, x), expected)


def test_backward_after_the_end_is_an_error(driver: Driver) -> None:
    model = Model()
    with small(model):
        loss = model(torch.randn(3, 200)).sum()
    with pytest.raises(RuntimeError, match="their Offload is closed"):
        loss.backward()


def test_weights_that_are_not_frozen_are_refused(driver: Driver) -> None:
    model = stack(*[400] * 8)
    with small(model, "3MiB"), pytest.raises(RuntimeError, match=r"0.weight is streamed and requ"):
        model(torch.randn(2, 400))
