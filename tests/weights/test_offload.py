"""offload(): a PyTorch module in a part of the card, bit-identical, and undone on exit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vramkit import offload
from vramkit.driver import DriverError
from vramkit.weights import BudgetError, UnsupportedModel
from vramkit.weights.hooks import map_tensors

from .models import FAMILIES, example, stack, torch

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.weights import Offload

MIB = 1 << 20
# The simulated GPU's memory serves PyTorch's CPU build only.
pytestmark = pytest.mark.sim_only


@pytest.fixture(autouse=True)
def _inference(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    with torch.no_grad():
        yield


def small(model: Any, budget: Any = "4.2MiB", **settings: Any) -> Offload:
    return offload(model, budget, **{"keep_below": 4096, "ring": 2 * MIB, **settings})


def picture(model: Any) -> dict[str, Any]:
    """What undoing must restore."""
    parameters = {
        name: (tensor.clone(), tensor.stride(), tensor.requires_grad, tensor.device, id(tensor))
        for name, tensor in [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
    }
    hooks = [
        (len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()
    ]
    return {"parameters": parameters, "hooks": hooks}


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["hooks"] == after["hooks"]
    assert before["parameters"].keys() == after["parameters"].keys()
    for name, (tensor, *rest) in before["parameters"].items():
        assert torch.equal(tensor, after["parameters"][name][0]), name
        assert rest == list(after["parameters"][name][1:]), name


# Results


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


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "vit"])
def test_generate_with_its_cache(driver: Driver, family: str) -> None:
    model, inputs, _ = example(family)
    inputs.pop("decoder_input_ids", None)
    expected = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    with small(model):
        assert torch.equal(model.generate(**inputs, max_new_tokens=32, do_sample=False), expected)


@pytest.mark.parametrize("policy", ["auto", "history1", "history", "stage2", "block_shallow"])
def test_every_policy_gives_the_same_result(driver: Driver, policy: str) -> None:
    model, inputs, _ = example("llama")
    expected = model(**inputs).logits
    settings = {} if policy == "auto" else {"ring": None, "budget": "7.5MiB"}
    with small(model, policy=policy, **settings):
        for _ in range(3):
            assert torch.equal(model(**inputs).logits, expected)


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


# Tensors of all kinds


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
        (host,) = [group for group in o._groups if "attention" in group._weights[0].names[0]]
        for number, weight in enumerate(host._weights):
            assert weight.tensor.data_ptr() == host._in_host[number].data_ptr()
        model.attention.register_forward_pre_hook(
            lambda module, args: used.extend(
                weight.names[0]
                for weight, tensor in zip(host._weights, host._on_card, strict=True)
                if weight.tensor.data_ptr() == tensor.data_ptr()
            )
        )
        model(torch.randn(1, 3, 256))
    assert "attention.out_proj.weight" in used


class Reads(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Uses the weight of a part that it does not call."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = torch.nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        if self.projection.weight.data_ptr() in self.in_host:
            raise RuntimeError("Expected all tensors to be on the same device, but ...")  # CUDA
        return torch.nn.functional.linear(x, self.projection.weight)


def test_a_part_whose_weights_are_read_without_a_call(driver: Driver) -> None:
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
    with small(model, keep_below=8192):
        for _ in range(2):
            assert torch.equal(model(x), other(x))
    for name, tensor in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


# Packed weights


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_weights_give_the_same_results(driver: Driver, family: str) -> None:
    model, inputs, generates = example(family)
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
        if generates:
            inputs.pop("decoder_input_ids", None)
            model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert_same(before, picture(model))
    assert pointers == [tensor.data_ptr() for tensor in model.parameters()]


def test_weights_that_are_not_bf16_travel_as_they_are(driver: Driver) -> None:
    model = stack(*[400] * 8)
    x = torch.randn(2, 400)
    expected = model(x)
    with small(model, "3MiB", packing="bf16-12") as o:
        assert torch.equal(model(x), expected)
        assert o.report().sent_bytes == o.report().streamed_bytes


def test_what_packing_does_not_go_with(driver: Driver) -> None:
    model = stack(*[800] * 8, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="packing is 'zip'; it may be 'off' or 'bf16-12'"):
        small(model, "4MiB", packing="zip")
    with torch.device("meta"):
        empty = torch.nn.Sequential(*[torch.nn.Linear(800, 800) for _ in range(7)])
    with pytest.raises(ValueError, match="packing and source cannot be used together"):
        small(empty, "9MiB", ring=4 * MIB, packing="bf16-12", source=lambda given: None)
    with small(model, "6MiB", packing="bf16-12"):
        model[3].weight.mul_(2)
        with pytest.raises(RuntimeError, match=r"3.weight was written after it was packed"):
            model(torch.randn(2, 800).to(torch.bfloat16))


# The model while it is offloaded


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


# Refusals


def test_bad_budgets(driver: Driver) -> None:
    model = stack(400, 400, 400, 400)
    data = [tensor.data_ptr() for tensor in model.parameters()]
    for budget, error, text in [
        ("much", ValueError, r"budget is 'much'; it may be bytes, or text such as"),
        ("24 GiB of it", ValueError, "budget is"),
        ("0%", ValueError, "a percentage may be more than 0, up to 100"),
        ("101%", ValueError, "a percentage"),
        (1.5, TypeError, r"budget is 1.5; it may be bytes"),
        (None, TypeError, "budget is None"),
        (0, ValueError, "budget is 0"),
        ("64KiB", BudgetError, r"budget is 64.0 KiB|budget is 64 KiB"),
        (1 * MIB, BudgetError, r"too little for these weights:\n  at least: a ring of the largest"),
    ]:
        with pytest.raises(error, match=text):
            offload(model, budget, keep_below=4096)
    assert data == [tensor.data_ptr() for tensor in model.parameters()]


def test_models_that_cannot_be_streamed(driver: Driver) -> None:
    with pytest.raises(TypeError, match=r"model is a int; it may be a torch.nn.Module"):
        offload(3, "1GiB")
    with pytest.raises(ValueError, match="the ReLU has no parameters"):
        offload(torch.nn.ReLU(), "1GiB")
    with pytest.raises(ValueError, match="nothing is worth streaming"):
        offload(stack(4, 4, 4), "1GiB")
    with torch.device("meta"):
        empty = torch.nn.Linear(1000, 1000)
    with pytest.raises(UnsupportedModel, match="weight is on the meta device"):
        offload(empty, "1GiB")
    shared = stack(1000, 1000, 1000)
    shared[1].weight = torch.nn.Parameter(shared[0].weight.detach()[:, :])
    with pytest.raises(UnsupportedModel, match=r"0.weight and 1.weight share memory"):
        offload(shared, "1GiB")
    gaps = stack(1000, 1000)
    gaps[0].weight = torch.nn.Parameter(torch.zeros(1000, 2000)[:, ::2])
    with pytest.raises(UnsupportedModel, match=r"0.weight has gaps or overlaps"):
        offload(gaps, "1GiB")

    class Wrapped(torch.Tensor):  # type: ignore[misc,name-defined]
        pass

    special = stack(1000, 1000)
    special[0].weight = torch.nn.Parameter(torch.zeros(1000, 1000).as_subclass(Wrapped))
    with pytest.raises(UnsupportedModel, match=r"0.weight is a Wrapped"):
        offload(special, "1GiB")


def test_a_model_is_offloaded_once(driver: Driver) -> None:
    model = stack(*[400] * 6)
    with small(model, "3MiB") as o:
        for each in (model, torch.nn.Sequential(torch.nn.Identity(), model)):
            with pytest.raises(ValueError, match="is offloaded already; close that Offload first"):
                small(each, "3MiB")
        assert not o.closed
    assert o.closed
    o.close()
    with small(model, "3MiB"):
        pass


def test_bad_devices(driver: Driver) -> None:
    with pytest.raises(TypeError, match="device is 'cuda'; it may be None, a number, or a Device"):
        offload(stack(400, 400), "1GiB", device="cuda")  # type: ignore[arg-type]


# Failures


def test_a_copy_that_fails_is_an_error_of_forward_and_the_next_works(driver: Driver) -> None:
    assert driver.sim is not None
    model, inputs, _ = example("llama")
    expected = model(**inputs).logits
    with small(model):
        model(**inputs)
        driver.sim.inject("cuMemcpyHtoDAsync*", nth=3, times=None, code=999)
        with pytest.raises(DriverError, match="cuMemcpyHtoDAsync"):
            model(**inputs)
        driver.sim.clear_faults()
        for _ in range(2):
            assert torch.equal(model(**inputs).logits, expected)


@pytest.mark.parametrize("call", ["cuMemHostRegister*", "cuMemCreate", "cuMemMap", "cuEventCreate"])
def test_a_failure_on_the_way_leaves_the_model_as_it_was(driver: Driver, call: str) -> None:
    assert driver.sim is not None
    model, inputs, _ = example("llama")
    expected, before = model(**inputs).logits, picture(model)
    driver.sim.inject(call, code=2)
    with pytest.raises(DriverError):
        small(model)
    assert_same(before, picture(model))
    assert torch.equal(model(**inputs).logits, expected)
    with small(model):
        assert torch.equal(model(**inputs).logits, expected)


def test_an_interrupt_while_weights_are_laid_out(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    expected, before = model(**inputs).logits, picture(model)
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(model, progress=progress)
    assert_same(before, picture(model))
    assert torch.equal(model(**inputs).logits, expected)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_host_memory_never_holds_the_weights_twice(driver: Driver) -> None:
    """The simulated card's memory is host memory too: only what comes before it is looked at."""
    torch.empty(30 * MIB, dtype=torch.uint8)  # freed: glibc now keeps what is smaller
    model = stack(*[1500] * 17)
    weights = sum(tensor.nbytes for tensor in model.parameters())
    assert weights > 128 * MIB
    resident: list[int] = []

    def note(done: int = 0, total: int = 0) -> None:
        status = Path("/proc/self/status").read_text("utf-8")
        resident.append(int(status.partition("VmRSS:")[2].split()[0]) << 10)

    note()
    with offload(model, "40MiB", progress=note):
        pass
    most = max(resident[1:-1]) - resident[0]
    assert most < 0.25 * weights  # one layer is a sixteenth


def test_too_little_host_memory_is_said_before_anything_moves(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(nbytes: int, what: str) -> None:
        raise MemoryError(f"no room for {what}")

    monkeypatch.setattr("vramkit.weights.slab.require", refuse)
    model = stack(*[400] * 6)
    data = [tensor.data_ptr() for tensor in model.parameters()]
    with pytest.raises(MemoryError, match="no room for a slab of"):
        small(model, "3MiB")
    assert data == [tensor.data_ptr() for tensor in model.parameters()]
