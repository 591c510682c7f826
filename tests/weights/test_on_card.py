"""offload() on a card: bit-identical to the resident model, with PyTorch's own streams."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vramkit import offload
from vramkit.driver import Driver

from .adapters import adapt
from .models import FAMILIES, MIXTURES, example, mixture, torch

MIB = 1 << 20
pytestmark = pytest.mark.frameworks("torch", "transformers")


def on_card(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.to("cuda") for name, tensor in inputs.items()}


def small(model: Any, **settings: Any) -> Any:
    """Through a ring of 2 MiB, with as much again for residents where that is not all of them."""
    nbytes = sum(tensor.nbytes for tensor in model.parameters())
    budget = min(6 * MIB, nbytes // (2 * MIB) * 2 * MIB + MIB * 9 // 5)
    return offload(model, budget, keep_below=4096, ring=2 * MIB, **settings)


def generated(model: Any, given: dict[str, Any]) -> Any:
    prompt = {name: tensor for name, tensor in given.items() if name != "decoder_input_ids"}
    return model.generate(**prompt, max_new_tokens=32, do_sample=False)


# Without room for the first group, model.device is the host, which transformers warns about.
@pytest.mark.filterwarnings("ignore:You are calling .generate")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_those_of_the_resident_model(driver: Driver, family: str, dtype: str) -> None:
    model, inputs, generates = example(family)
    model.to(getattr(torch, dtype))
    if "pixel_values" in inputs:
        inputs["pixel_values"] = inputs["pixel_values"].to(getattr(torch, dtype))
    resident = copy.deepcopy(model).to("cuda")
    given = on_card(inputs)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        expected = resident(**given).logits
        with small(model) as o:
            for _ in range(3):
                assert torch.equal(model(**given).logits, expected)
            cold = o.stats().misses
            assert torch.equal(model(**given).logits, expected)
            assert o.stats().misses == cold
            # Arguments in host memory come to the card, and results go back.
            assert torch.equal(model(**inputs).logits, expected.cpu())
            if generates:
                assert torch.equal(generated(model, given), generated(resident, given))
            assert o.report().pass_s is not None
    for name, tensor in model.state_dict().items():
        assert tensor.device.type == "cpu"
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize("family", MIXTURES)
@pytest.mark.parametrize(("dtype", "budget"), [("float32", "7MiB"), ("bfloat16", "6MiB")])
def test_routed_experts(
    driver: Driver, family: str, implementation: str, dtype: str, budget: str
) -> None:
    model = mixture(family).to(getattr(torch, dtype))
    model.set_experts_implementation(implementation)
    resident = copy.deepcopy(model).to("cuda")
    prompt = torch.randint(3, 100, (1, 3), device="cuda")
    settings = {"max_new_tokens": 8, "do_sample": False}
    with torch.no_grad():
        expected = resident(prompt).logits
        with offload(model, budget, keep_below=4096, experts="routed") as o:
            for _ in range(2):
                assert torch.equal(model(prompt).logits, expected)
            assert torch.equal(
                model.generate(prompt, **settings), resident.generate(prompt, **settings)
            )
            assert bool(o.experts.stats().hits) is bool(o.experts.slots)
            assert o.report().experts.waited_s is not None
            assert "experts" in str(o.report())


# As above.
@pytest.mark.filterwarnings("ignore:You are calling .generate")
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_weights(driver: Driver, family: str) -> None:
    model, inputs, generates = example(family)
    model.to(torch.bfloat16)
    if "pixel_values" in inputs:
        inputs["pixel_values"] = inputs["pixel_values"].to(torch.bfloat16)
    resident = copy.deepcopy(model).to("cuda")
    given = on_card(inputs)
    with torch.no_grad(), small(model, packing="bf16-12") as o:
        expected = resident(**given).logits
        for _ in range(3):
            assert torch.equal(model(**given).logits, expected)
        if generates:
            assert torch.equal(generated(model, given), generated(resident, given))
        report = o.report()
        assert 0 < report.sent_bytes < report.streamed_bytes


@pytest.mark.parametrize("place", ["on the card", "in host memory"])
def test_on_the_last_card(driver: Driver, place: str) -> None:
    """The only one, on most machines; a model in host memory comes to PyTorch's current one."""
    card = torch.device("cuda", torch.cuda.device_count() - 1)
    model, inputs, _ = example("llama")
    resident = copy.deepcopy(model).to(card)
    model.to(card if place == "on the card" else "cpu")
    home = model.device
    given = {name: tensor.to(card) for name, tensor in inputs.items()}
    current = card.index if place == "in host memory" else 0
    with torch.no_grad(), torch.cuda.device(current):
        expected = resident(**given).logits
        with small(model) as o:
            assert o.device.ordinal == card.index
            for _ in range(3):
                assert torch.equal(model(**given).logits, expected)
    assert all(tensor.device == home for tensor in model.parameters())


def test_on_a_stream_of_its_own(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    resident = copy.deepcopy(model).to("cuda")
    given = on_card(inputs)
    with torch.no_grad(), small(model):
        expected = resident(**given).logits
        streams = [torch.cuda.Stream() for _ in range(2)]
        torch.cuda.synchronize()
        for turn in range(6):
            with torch.cuda.stream(streams[turn % 2]):
                result = model(**given).logits
            streams[turn % 2].synchronize()
            assert torch.equal(result, expected)


@pytest.mark.parametrize("packing", ["off", "bf16-12"])
def test_gradients_of_adapters(driver: Driver, packing: str) -> None:
    # Fused attention may add up gradients in any order.
    model, inputs, _ = example("llama", attn_implementation="eager")
    model.to(torch.float32 if packing == "off" else torch.bfloat16)
    for name, tensor in model.named_parameters():
        tensor.requires_grad_("layernorm" in name)
    resident = copy.deepcopy(model).to("cuda")
    given = on_card(inputs)

    def gradients(trained: Any) -> dict[str, Any]:
        trained.zero_grad()
        trained(**given, labels=given["input_ids"]).loss.backward()
        named = trained.named_parameters()
        return {name: tensor.grad.clone() for name, tensor in named if tensor.grad is not None}

    expected = gradients(resident)
    assert expected
    with small(model, packing=packing) as o:
        for _ in range(3):
            found = gradients(model)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)
        report = o.report()
        assert (report.sent_bytes < report.streamed_bytes) is (packing != "off")
    assert all(
        tensor.grad.device == tensor.device
        for tensor in model.parameters()
        if tensor.grad is not None
    )


def test_adapters_that_are_added_while_the_model_is_offloaded(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    given = on_card(inputs)
    with torch.no_grad(), offload(model, "3MiB", keep_below=4096, ring=2 * MIB) as o:
        assert not any(o.manager.layout.resident)
        model(**given)
        adapt(model)
        added = [tensor for name, tensor in model.named_parameters() if "lora_" in name]
        assert {tensor.device.type for tensor in added} == {"cpu"}
        for called in (model, model.forward):
            with pytest.raises(
                RuntimeError, match=r"lora_A.weight \(and \d+ more\) was added while"
            ):
                called(**given)
        for tensor in added:
            tensor.data = tensor.data.to("cuda")
        found = model(**given).logits
    assert torch.equal(model.to("cuda")(**given).logits, found)


def test_a_model_that_is_moved_while_it_is_offloaded(driver: Driver) -> None:
    """Streamed weights are in host memory anyway: what moves is what stays on the card."""
    model, inputs, _ = example("llama")
    given = on_card(inputs)
    with torch.no_grad(), offload(model, "3MiB", keep_below=4096, ring=2 * MIB) as o:
        assert not any(o.manager.layout.resident)
        expected = model(**given).logits
        model.cpu()
        with pytest.raises(RuntimeError, match=r"was moved or replaced .* is on cpu, not on cuda:"):
            model(**given)
    assert torch.equal(model.to("cuda")(**given).logits, expected)


@pytest.mark.parametrize("policy", ["auto", "block_shallow"])
def test_the_timeline_says_what_the_host_waited(driver: Driver, policy: str) -> None:
    model, inputs, _ = example("llama", num_hidden_layers=12)
    given = on_card(inputs)
    with torch.no_grad(), offload(model, "7.5MiB", keep_below=4096, policy=policy) as o:
        for _ in range(3):
            model(**given)
        found = o.timeline()
        layers = len({group.layer for group in o.manager.layout.groups})
    assert len(found.time.waits) == (layers if policy == "block_shallow" else 0)
    assert bool(found.time.host_blocked) is (policy == "block_shallow")
    # The clocks agree: no group computes before the host has seen it arrive.
    work = {span.name: span.start for lane in found.names for span in found.lane(lane)}
    for wait in found.time.waits:
        assert wait.end <= work[wait.name.replace("ensure", "compute")] + 1e-4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TensorFloat32")  # of torch
def test_compiled_layers(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    given = on_card(inputs)
    resident = copy.deepcopy(model).to("cuda")
    for each in (model, resident):
        for layer in each.model.layers:
            layer.mlp.compile()
    with torch.no_grad():
        expected = resident(**given).logits
        with small(model):
            for _ in range(3):
                assert torch.equal(model(**given).logits, expected)


def test_resident_weights_give_way_to_tensors_of_pytorch(driver: Driver) -> None:
    program = Path(__file__).parent / "programs" / "gives_way.py"
    ended = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_one_rank_gathers_its_own_shares(driver: Driver, backend: str, tmp_path: Path) -> None:
    """There is no other card to gather from; calls and order are those of several."""
    dist = torch.distributed
    model, inputs, _ = example("llama")
    resident = copy.deepcopy(model).to("cuda")
    given = on_card(inputs)
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        with (
            torch.no_grad(),
            offload(model, "5.6MiB", keep_below=4096, ring=2 * MIB, group=dist.group.WORLD) as o,
        ):
            expected = resident(**given).logits
            for _ in range(5):
                assert torch.equal(model(**given).logits, expected)
            layout = o.manager.layout
            assert o.manager.sent_bytes == layout.streamed_bytes > 0
            assert "rank 0 of 1" in str(o.report())
    finally:
        dist.destroy_process_group()
