"""Weights that are read in forward without a call of their part: by another module, which holds the
module that has them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from .host_reads import HostReads
from .models import stack, torch
from .offloads import assert_same, picture, small

if TYPE_CHECKING:
    from vramkit.driver import Driver

# The simulated GPU's memory serves PyTorch's CPU build only.
pytestmark = [pytest.mark.sim_only, pytest.mark.usefixtures("simulated")]


class TiedHead(torch.nn.Module):  # type: ignore[misc,name-defined]
    """The head is the embedding, and is no module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(300, 400)
        self.layers = stack(*[400] * 7)

    def forward(self, tokens: Any) -> Any:
        inside = self.layers(self.embedding(tokens))
        return torch.nn.functional.linear(inside, self.embedding.weight)


TOKENS = torch.arange(8).reshape(2, 4)
HEAD = 300 * 400 * 4


def streamed_head(model: Any, **settings: Any) -> Any:
    """The embedding is streamed: the first group is resident where there is room for it."""
    return small(model, "2.6MiB", **settings)


def test_a_head_that_is_the_embedding(driver: Driver) -> None:
    model = TiedHead()
    before = picture(model)
    with torch.no_grad():
        expected = model(TOKENS)
        with streamed_head(model) as o:
            assert not o._groups[0].resident
            for _ in range(3):
                assert torch.equal(model(TOKENS), expected)
            outside = o.report().outside
            assert (outside.copies, outside.copied_bytes) == (3, 3 * HEAD)
            assert outside.names == ("embedding.weight",)
            assert "embedding.weight: 3 copies of 1.37 MiB in all" in str(o.report())
            with HostReads(o._store.addresses[0], o._store.nbytes) as reads:
                model(TOKENS)
            assert reads.found == []
        with small(model, "4.2MiB", ring=None) as o:  # where it is resident nothing is copied
            assert o._groups[0].resident
            assert torch.equal(model(TOKENS), expected)
            assert o.report().outside.copies == 0
            assert "read outside" not in str(o.report())
        assert torch.equal(model(TOKENS), expected)
    assert_same(before, picture(model))
    assert all(type(module._parameters) is dict for module in model.modules())


def test_what_is_not_used_is_not_copied(driver: Driver) -> None:
    class Asks(TiedHead):
        def forward(self, tokens: Any) -> Any:
            weight = self.embedding.weight
            assert isinstance(weight, torch.nn.Parameter)
            self.told = (weight.dtype, weight.device, weight.shape, weight.stride())
            return self.layers(self.embedding(tokens))

    model = Asks()
    with torch.no_grad(), streamed_head(model) as o:
        model(TOKENS)
        assert model.told == (torch.float32, o._memory.device, (300, 400), (400, 1))
        assert o.report().outside.copies == 0


def test_layers_whose_forward_is_called_directly(driver: Driver) -> None:
    class Direct(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = stack(*[400] * 7)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer.forward(x)
            return x

    model, x = Direct(), torch.randn(2, 400)
    with torch.no_grad():
        expected = model(x)
        with small(model, "3MiB") as o:
            with HostReads(o._store.addresses[0], o._store.nbytes) as reads:
                assert torch.equal(model(x), expected)
            assert reads.found == []
            assert o.report().outside.copies == 12  # weights and biases


def test_outside_of_forward_parameters_are_those_in_host_memory(driver: Driver) -> None:
    model = TiedHead()
    with torch.no_grad(), streamed_head(model) as o:
        first = model(TOKENS)
        assert model.embedding.weight is o._groups[0].weights[0].tensor
        model.embedding.weight.mul_(2)  # counts from the next forward on, in both places
        second = model(TOKENS)
    with torch.no_grad():
        assert torch.equal(model(TOKENS), second)
        assert not torch.equal(first, second)


def test_a_module_inside_of_a_part_can_be_copied(driver: Driver) -> None:
    model = torch.nn.Sequential(*[torch.nn.MultiheadAttention(256, 4) for _ in range(5)])
    with small(model, "2.5MiB"):
        inside = model[3].out_proj
        copied = copy.deepcopy(inside)
        assert type(copied._parameters) is dict is not type(inside._parameters)
        assert torch.equal(copied.weight, inside.weight)


def test_a_weight_that_is_replaced_meanwhile_is_still_an_error(driver: Driver) -> None:
    model = TiedHead()
    other = torch.nn.Parameter(torch.zeros(300, 400))
    with torch.no_grad(), streamed_head(model):
        model.embedding.weight = other
        with pytest.raises(RuntimeError, match=r"embedding.weight was moved or replaced while"):
            model(TOKENS)
    assert model.embedding.weight is other


def test_writing_is_an_error_that_names_the_weight(driver: Driver) -> None:
    class Writes(TiedHead):
        def forward(self, tokens: Any) -> Any:
            self.embedding.weight.mul_(0.9)
            return super().forward(tokens)

    model = Writes()
    before = picture(model)
    with torch.no_grad(), streamed_head(model):
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"embedding.weight was written in forward, out"):
                model(TOKENS)
    assert_same(before, picture(model))


def test_gradients_through_a_frozen_head(driver: Driver) -> None:
    model = TiedHead().requires_grad_(False)
    start = torch.randn(2, 400)

    def gradient() -> Any:
        x = start.clone().requires_grad_(True)
        inside = model.layers(x)
        model.head(inside).square().sum().backward()
        return x.grad

    class Head(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.linear(x, self.parent[0].embedding.weight)

    model.head = Head()
    model.head.parent = [model]
    expected = gradient()
    with streamed_head(model) as o:
        assert torch.equal(gradient(), expected)
        assert o.report().outside.names == ("embedding.weight",)
    model.requires_grad_(True)
    with streamed_head(model), pytest.raises(RuntimeError, match=r"requires a gradient: for infer"):
        model.head(start)
