"""Weights of all kinds, and modules that hold them, under offload()."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .models import example, stack, torch
from .offloads import assert_same, picture, small

if TYPE_CHECKING:
    from vramkit.driver import Driver

# The simulated GPU's memory serves PyTorch's CPU build only.
pytestmark = [pytest.mark.sim_only, pytest.mark.usefixtures("inference")]


def test_tied_parameters_are_copied_once(driver: Driver) -> None:
    model, inputs, _ = example("gpt2")
    assert model.lm_head.weight is model.transformer.wte.weight
    with small(model) as o:
        names = [str(group) for group in o.manager.layout.groups]
        assert not [name for name in names if "lm_head" in name]
        assert model.lm_head.weight is model.transformer.wte.weight
        model(**inputs)


def test_strides_types_and_odd_sizes_are_kept(driver: Driver) -> None:
    torch.manual_seed(0)

    class Odd(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.turned = torch.nn.Parameter(torch.randn(300, 701).t())
            self.low = torch.nn.Parameter(torch.randn(513, 301).to(torch.bfloat16))
            self.register_buffer("table", torch.randint(-128, 127, (777, 301), dtype=torch.int8))
            self.register_buffer("scale", torch.randn(()).double())
            self.register_buffer("none", None)

        def forward(self, x: Any) -> Any:
            y = (x @ self.turned) @ self.low.float().t()[:300]
            return y.sum() * self.scale + self.table.double().sum()

    model = torch.nn.Sequential(Odd(), torch.nn.Identity(), *[stack(400, 400) for _ in range(6)])
    model = torch.nn.ModuleDict({"odd": model[0], "rest": model[2:]})
    pictures = picture(model)
    x = torch.randn(5, 701)
    expected = model["odd"](x)
    with small(model, "4.5MiB", keep_below=0):
        assert torch.equal(model["odd"](x), expected)
        assert model["odd"].turned.stride() == (1, 701)
        model["rest"](torch.randn(2, 400))
        assert torch.equal(model["odd"](x), expected)
    assert_same(pictures, picture(model))


def test_a_module_that_reads_the_weights_of_its_parts_is_one_part(driver: Driver) -> None:
    """nn.MultiheadAttention does not call its projection."""

    class Attends(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(256, 4, batch_first=True)
            self.rest = stack(256, 256, 256, 256, 256)

        def forward(self, x: Any) -> Any:
            return self.rest(self.attention(x, x, x)[0])

    torch.manual_seed(0)
    model = Attends().eval()
    used: list[str] = []
    with small(model, "3MiB") as o:
        (host,) = [group for group in o._groups if "attention" in group.weights[0].names[0]]
        for number, weight in enumerate(host.weights):
            assert weight.tensor.data_ptr() == host._in_host[number].data_ptr()
        model.attention.register_forward_pre_hook(
            lambda module, args: used.extend(
                weight.names[0]
                for weight, tensor in zip(host.weights, host._on_card, strict=True)
                if weight.tensor.data_ptr() == tensor.data_ptr()
            )
        )
        model(torch.randn(1, 3, 256))
    assert "attention.out_proj.weight" in used


class Reads(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Uses the weight of a part that it does not call, and does not read it from there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = torch.nn.Linear(width, width)
        self.held = [self.projection.weight]

    def forward(self, x: Any) -> Any:
        (weight,) = self.held
        if weight.data_ptr() in self.in_host:
            raise RuntimeError("Expected all tensors to be on the same device, but ...")  # CUDA
        return torch.nn.functional.linear(x, weight)


def test_a_part_whose_weights_are_used_behind_its_back(driver: Driver) -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"reads": Reads(400), "rest": stack(*[400] * 6)})
    model.forward = lambda x: model["rest"](model["reads"](x))
    x = torch.randn(2, 400)
    model["reads"].in_host = set()
    expected = model(x)
    for whole in ((), ("reads",)):
        with small(model, "3MiB", whole=whole) as o:
            model["reads"].in_host = {
                tensor.data_ptr() for group in o._groups for tensor in group._in_host
            }
            if whole:
                assert torch.equal(model(x), expected)
                continue
            with pytest.raises(RuntimeError, match="same device") as raised:
                model(x)
            assert "name that module in offload(..., whole=[...])" in raised.value.__notes__[0]
            assert "reads.projection" in raised.value.__notes__[0]
    model["reads"].in_host = set()
    for bad in ("nothing", "", "rest.9"):
        with pytest.raises(ValueError, match="which is no module of the model that can be called"):
            small(model, "3MiB", whole=[bad])


def test_one_frozen_weight_makes_no_adapters_of_the_others(driver: Driver) -> None:
    model = stack(*[400] * 8)
    model[2].bias.requires_grad_(False)
    with small(model, "3MiB") as o:
        assert len(o.manager.layout.groups) == 7
        model(torch.randn(2, 400))


def test_buffers_that_forward_writes_stay_on_the_card(driver: Driver) -> None:
    torch.manual_seed(0)
    layers = [
        torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300)) for _ in "123456"
    ]
    model = torch.nn.Sequential(*layers)
    other = torch.nn.Sequential(
        *[
            torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300))
            for _ in "123456"
        ]
    )
    other.load_state_dict(model.state_dict())
    x = torch.randn(8, 300)
    with small(model, "3.9MiB", keep_below=8192) as o:
        assert o.report().streamed_bytes > 0
        for _ in range(2):
            assert torch.equal(model(x), other(x))
    for name, tensor in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
