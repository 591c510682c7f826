"""Uses of an offloaded model that must give the right values or one clear error."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vramkit.weights import BudgetError, ModelError, UnsupportedModel
from vramkit.weights.backward import Backward
from vramkit.weights.hooks import ModelHooks
from vramkit.weights.model import Model, Weight
from vramkit.weights.store import Kept
from vramkit.weights.unstreamed import Unstreamed

from . import offloads
from .models import stack, torch

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.weights import Offload

MIB = 1 << 20
pytestmark = [pytest.mark.sim_only, pytest.mark.usefixtures("simulated")]


def small(model: Any, budget: Any = "3MiB", **settings: Any) -> Offload:
    return offloads.small(model, budget, **settings)


def values(model: Any) -> dict[str, Any]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# Views of weights


class Table(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Returns its weight, or a view of it, as modules of learned positions do."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(400, 400))
        self.rows = rows

    def forward(self) -> Any:
        return Tables([self.weight[: self.rows] if self.rows else self.weight])


@dataclass(frozen=True, slots=True)
class Tables:
    tables: list[Any]


class WithTable(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.first, self.table, self.rest = stack(400, 400), Table(rows), stack(*[400] * 8)

    def forward(self, x: Any) -> Any:
        (table,) = self.table().tables
        return self.rest(self.first(x)) @ table.t()  # other weights came through the ring since


@pytest.mark.parametrize("rows", [300, 0])
def test_a_view_of_a_weight_that_a_part_returns_keeps_its_values(driver: Driver, rows: int) -> None:
    torch.manual_seed(0)
    model, x = WithTable(rows), torch.randn(2, 400)
    with torch.no_grad():
        expected = model(x)
        with small(model) as o:
            (group,) = [g for g in o._groups if g.weights[0].names[0] == "table.weight"]
            assert not group.resident
            for _ in range(3):
                assert torch.equal(model(x), expected)
            # The parameter itself would be in host memory again when the caller uses it.
            assert model.table().tables[0].data_ptr() != group._in_host[0].data_ptr()


# Interrupts


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_forward_leaves_the_weights_right(
    driver: Driver, interrupt: type[BaseException]
) -> None:
    """Module calls no hooks for what is not an Exception."""
    model, x = stack(*[400] * 9).requires_grad_(False), torch.randn(2, 400, requires_grad=True)
    before, expected = values(model), model(x)

    def raises(*args: object) -> None:
        raise interrupt

    with small(model):
        handle = model[3].register_forward_pre_hook(raises)
        for _ in range(3):
            with pytest.raises(interrupt):
                model(x)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        handle.remove()
        for _ in range(2):
            assert torch.equal(model(x), expected)
            assert same(values(model), before)
    assert "_call_impl" not in vars(model[3])


def test_a_part_with_several_groups_ends_all_of_them(driver: Driver) -> None:
    """Also if the end of the first raises."""

    class Writes(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, first: Any, second: Any) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: Any) -> Any:
            self.first.add_(1)
            return x @ self.first @ self.second

    layers = stack(*[400] * 9)
    model = torch.nn.Sequential(*layers, Writes(layers[2].weight, layers[3].weight))
    before, x = values(model), torch.randn(2, 400)
    with torch.no_grad(), small(model):
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"2.weight was written in forward"):
                model(x)
            model[:8](x)
            assert same(values(model), before)


# Writes


def test_writes_to_data_of_resident_weights_are_kept(driver: Driver) -> None:
    """They are not counted by the tensor's version."""
    model = stack(*[400] * 5)
    with torch.no_grad(), small(model, "100%", ring=None):
        for layer in model:
            layer.weight.data.mul_(2)
            layer.bias.data.zero_()
        written = values(model)
    assert same(values(model), written)


def test_a_weight_whose_strides_were_changed_is_an_error(driver: Driver) -> None:
    model = stack(*[400] * 9)
    with torch.no_grad(), small(model):
        model[4].weight.data = model[4].weight.data.t()
        with pytest.raises(RuntimeError, match=r"4.weight was moved or replaced"):
            model(torch.randn(2, 400))


@pytest.mark.parametrize("budget", ["3MiB", "100%"])
def test_a_resident_weight_that_was_moved_is_an_error_too(driver: Driver, budget: str) -> None:
    model, x = stack(*[400] * 9), torch.randn(2, 400)
    before = values(model)
    with torch.no_grad(), small(model, budget, ring=None):
        model.half()
        with pytest.raises(RuntimeError, match=r"0.weight was moved or replaced"):
            model(x.half())
    assert same(values(model), before)


def test_a_source_that_leaves_a_weight_out_is_an_error(driver: Driver) -> None:
    """Buffers that are not saved are not loaded either: they would hold whatever was there."""

    class Scaled(torch.nn.Linear):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(400, 400)
            self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

        def forward(self, x: Any) -> Any:
            return super().forward(x) * self.scale[0]

    full = torch.nn.Sequential(Scaled(), *stack(*[400] * 8))

    def made() -> Any:
        with torch.device("meta"):
            return torch.nn.Sequential(Scaled(), *[torch.nn.Linear(400, 400) for _ in range(7)])

    def by_data(model: Any) -> None:
        for name, tensor in model.named_parameters():
            tensor.data.copy_(full.get_parameter(name).data)
        model[0].scale.data.fill_(2)

    model, x = made(), torch.randn(2, 400)
    with pytest.raises(ModelError, match=r"the source did not write 0.scale"):
        small(model, source=lambda model: model.load_state_dict(full.state_dict()))
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    with torch.no_grad(), small(model, source=by_data):
        assert torch.equal(model(x), full(x))


def test_a_checkpoint_whose_sizes_do_not_agree_is_refused(driver: Driver, tmp_path: Path) -> None:
    names = [f"{layer}.{kind}" for layer in range(8) for kind in ("weight", "bias")]
    header: dict[str, Any] = {}
    for name in names:
        shape = [400, 400] if name.endswith("weight") else [400]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [0, 1600]}
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(1600))
    with torch.device("meta"):
        model = torch.nn.Sequential(*[torch.nn.Linear(400, 400) for _ in range(8)])
    with pytest.raises(
        ModelError, match=r"0.weight has 1.56 KiB in .*, and F32 \(400, 400\) takes"
    ):
        small(model, source=path)


# Gradients


def test_second_derivatives_through_streamed_weights(driver: Driver) -> None:
    torch.manual_seed(0)
    layers: list[Any] = []
    for layer in stack(*[400] * 9).requires_grad_(False):
        layers += [layer, torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers)
    x = torch.randn(2, 400, requires_grad=True)

    def second() -> Any:
        (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    expected = second()
    with small(model):
        for _ in range(2):
            assert torch.equal(second(), expected)


def test_a_saved_conjugate_is_a_conjugate_again(driver: Driver) -> None:
    class Conjugates(torch.nn.Linear):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return (x.unsqueeze(1) * self.weight.conj() * self.weight.conj().imag).sum(-1)

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Conjugates(300, 300, dtype=torch.complex64) for _ in range(6)])
    model.requires_grad_(False)
    x = torch.randn(2, 300, dtype=torch.complex64, requires_grad=True)

    def gradient() -> Any:
        return torch.autograd.grad(model(x).abs().sum(), x)[0]

    expected = gradient()
    with small(model):
        assert torch.equal(gradient(), expected)


def test_parameters_are_no_inference_tensors_afterwards(driver: Driver) -> None:
    model, x = stack(*[400] * 9), torch.randn(2, 400)
    with torch.inference_mode(), small(model):
        model(x)
    assert not any(tensor.is_inference() for tensor in model.parameters())
    model(x).sum().backward()
    assert all(tensor.grad is not None for tensor in model.parameters())


def test_autocast_keeps_no_copies_of_streamed_weights(driver: Driver) -> None:
    """Its cache of casted weights would hold the whole model on the card."""
    model, x = stack(*[400] * 9), torch.randn(2, 400)
    seen: list[bool] = []
    model[4].register_forward_hook(lambda *_: seen.append(torch.is_autocast_cache_enabled()))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x)
        torch.clear_autocast_cache()
        with small(model):
            assert torch.equal(model(x), expected)
            assert torch.is_autocast_cache_enabled()
            for layer in model:
                layer.weight.mul_(2)  # counts from the next forward on
            doubled = model(x)
        torch.clear_autocast_cache()
        assert torch.equal(model(x), doubled)
    assert seen == [True, False, False, True]


# Copies of the model, threads


@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps])
def test_an_offloaded_model_cannot_be_copied(driver: Driver, how: Any) -> None:
    model = stack(*[400] * 9)
    with small(model):
        for each in (model, model[4]):
            with pytest.raises(TypeError, match="the model is offloaded and cannot be copied or"):
                how(each)
    how(model)


def test_a_call_from_a_second_thread_is_an_error(driver: Driver) -> None:
    model, x = stack(*[400] * 9), torch.randn(2, 400)
    errors: list[BaseException] = []

    def call() -> None:
        try:
            with torch.no_grad():
                model(x)
        except RuntimeError as error:
            errors.append(error)

    def call_from_another_thread(*args: object) -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    with torch.no_grad():
        expected = model(x)
        with small(model):
            handle = model[4].register_forward_pre_hook(call_from_another_thread)
            assert torch.equal(model(x), expected)
            handle.remove()
            assert [str(error)[:44] for error in errors] == [
                "the offloaded model is being called by anoth"
            ]
            call_from_another_thread()  # after the other
            assert len(errors) == 1
            assert torch.equal(model(x), expected)


# Refusals


def test_packing_with_a_source_is_refused_for_bf16_too(driver: Driver) -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(*[torch.nn.Linear(800, 800) for _ in range(7)])
    with pytest.raises(ValueError, match="packing and source cannot be used together"):
        small(model.bfloat16(), "6MiB", packing="bf16-12", source=lambda given: None)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_are_refused_by_name(driver: Driver) -> None:
    model = stack(*[400] * 5)
    table = torch.quantize_per_tensor(torch.randn(400, 400), 0.1, 0, torch.qint8)
    model[2].register_buffer("table", table)
    with pytest.raises(UnsupportedModel, match=r"2.table is quantized \(torch.qint8\)"):
        small(model)


def test_a_budget_without_room_for_packed_chunks_is_refused_first(driver: Driver) -> None:
    model, moved = stack(*[800] * 9, dtype=torch.bfloat16), []
    for budget, text in [
        ("2.6MiB", r"budget is 2.60 MiB; packed weights on their way take 3.\d+ MiB"),
        ("5MiB", r"too little for these weights:(.|\n)*besides: packed weights on their way, 3."),
    ]:
        with pytest.raises(BudgetError, match=text):
            small(model, budget, packing="bf16-12", progress=lambda *done: moved.append(done))
    assert not moved


class Uses(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, *weights: Any) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(weights)

    def forward(self, x: Any) -> Any:
        for weight in self.weights:
            x = x @ weight
        return x


def test_weights_of_several_groups_that_are_used_at_once(driver: Driver) -> None:
    """They must not have the same place in the ring."""
    layers, x = stack(*[400] * 9), torch.randn(2, 400)
    model = torch.nn.Sequential(*layers, Uses(layers[2].weight, layers[4].weight))
    with torch.no_grad():
        expected = model(x)
        with small(model, "5MiB") as o:
            for _ in range(3):
                assert torch.equal(model(x), expected)
            assert o.manager.layout.resident.count(False) > 4
    data = [tensor.data_ptr() for tensor in layers.parameters()]
    with pytest.raises(BudgetError, match=r"8 uses weights of 2.2 and of 4.4 at once, and the rin"):
        small(model, "3MiB")
    assert data == [tensor.data_ptr() for tensor in layers.parameters()]


def test_a_list_of_parameters_belongs_to_the_module_that_has_it(driver: Driver) -> None:
    """It is never called itself."""
    torch.manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(400, 400) / 20) for _ in range(6)]
    model, x = torch.nn.Sequential(*[Uses(each) for each in made]), torch.randn(2, 400)
    with torch.no_grad(), small(model) as o:
        called: list[bool] = []
        (group,) = [g for g in o._groups if g.weights[0].tensor is made[4]]
        model[4].register_forward_pre_hook(
            lambda *_: called.append(made[4].data_ptr() == group._on_card[0].data_ptr())
        )
        model(x)
    assert called == [True]


def test_parameters_that_were_made_as_inference_tensors(driver: Driver) -> None:
    with torch.inference_mode():
        model = stack(*[400] * 9)
        again = copy.deepcopy(model)
    x, parameters = torch.randn(2, 400), [*model.parameters(), *again.parameters()]
    for each, mode in ((model, torch.inference_mode), (again, torch.no_grad)):
        with mode():
            expected = each(x)
            with small(each):
                for _ in range(2):
                    assert torch.equal(each(x), expected)
                for layer in each:
                    layer.weight.mul_(2)
                doubled = each(x)
            assert torch.equal(each(x), doubled)
    both = [*model.parameters(), *again.parameters()]
    assert all(one is other for one, other in zip(parameters, both, strict=True))


# What only happens on a card: another device stands for it


def test_kept_weights_return_if_one_of_them_cannot_be_moved() -> None:
    class Fails:
        """A tensor for which the card has no room."""

        device, is_meta, grad = torch.device("cpu"), False, None

        @property
        def data(self) -> Any:
            raise torch.cuda.OutOfMemoryError

    class Moves(Fails):
        def __init__(self) -> None:
            self.data = torch.ones(2)

        data = None

    moves = Moves()
    weights = [Weight(tensor, ("w",), (), False) for tensor in (moves, Fails())]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        Kept(weights, torch.device("meta"))
    assert moves.data is not None
    assert moves.data.device.type == "cpu"


def test_results_stay_on_the_card_if_an_argument_was_there() -> None:
    class Adds(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, step: Any) -> Any:
            return x + step

    model, card = Adds(), torch.device("meta")
    unstreamed = Unstreamed(Model(model, (), (), (), ()), card)
    hooks = ModelHooks(torch, model, lambda: None, card, Backward(torch), [], unstreamed)
    with hooks:
        assert model(torch.ones(2, device=card), step=torch.tensor(3.0)).is_meta
        with suppress(NotImplementedError):  # a copy from the meta device
            model(torch.ones(2), torch.tensor(3.0))
            pytest.fail("the result was not moved back")
