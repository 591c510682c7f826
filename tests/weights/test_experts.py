"""Routed experts: the same results from fewer bytes, and recently used ones stay on the card."""

from __future__ import annotations

import copy
import random
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from vramkit.driver import Span
from vramkit.weights.experts import ExpertCache, ExpertLayer, Rows
from vramkit.weights.layout import BudgetError

from .models import MIXTURES, enable_checkpointing, mixture, torch
from .offloads import assert_same, picture, small

if TYPE_CHECKING:
    from vramkit.driver import Device, Driver, Simulator

pytestmark = [pytest.mark.sim_only, pytest.mark.usefixtures("simulated")]


def _tokens(*shape: int) -> Any:
    torch.manual_seed(1)
    return torch.randint(3, 100, shape)


def _routed(model: Any, budget: Any = "7MiB", **settings: Any) -> Any:
    return small(model, budget, experts="routed", **settings)


@pytest.mark.parametrize("family", list(MIXTURES))
@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_results_are_those_of_the_residentmixture(
    driver: Driver, family: str, implementation: str
) -> None:
    model = mixture(family)
    model.set_experts_implementation(implementation)
    prompt = _tokens(1, 3)
    with torch.no_grad():
        expected = model(prompt).logits
        generated = model.generate(prompt, max_new_tokens=6, do_sample=False)
        before = picture(model)
        with _routed(model) as o:
            assert torch.equal(model(prompt).logits, expected)
            assert torch.equal(model.generate(prompt, max_new_tokens=6, do_sample=False), generated)
            assert o.experts.stats().reads == 7 * 4  # seven passes of four layers
            assert o.experts.stats().copied_bytes > 0
        assert_same(before, picture(model))


def test_only_chosen_experts_are_copied_and_recent_ones_stay() -> None:
    model = mixture("Mixtral")
    token = _tokens(1, 1)
    with torch.no_grad(), _routed(model) as o:
        model(token)
        first = o.experts.stats()
        assert (first.hits, first.misses) == (0, 2 * 4)  # two of eight experts in each layer
        each = o.experts.slot_bytes
        assert first.copied_bytes == 8 * each
        model(token)
        second = o.experts.stats()
        assert (second.hits, second.copied_bytes) == (8, first.copied_bytes)
        text = str(o.report())
        assert "50 % of those chosen were on the card; the host waited for 8 routings" in text
        assert o.report().experts.copied_bytes == 0
    assert str(o.report())  # also when it is closed


def test_the_host_tells_that_each_routing_blocks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, waits = mixture("Mixtral"), []
    with torch.no_grad(), _routed(model) as o:

        def blocking(name: str) -> Any:
            waits.append(name)
            return nullcontext()

        monkeypatch.setattr(o.manager, "blocking", blocking)
        model(_tokens(1, 1))
    assert waits == [f"routing of model.layers.{layer}.mlp.experts" for layer in range(4)]


def test_without_slots_every_use_is_a_copy() -> None:
    model = mixture("Mixtral")
    token = _tokens(1, 1)
    with torch.no_grad():
        expected = model(token).logits
        with _routed(model, "4.2MiB", ring=None) as o:
            assert o.experts.slots == 0
            for _ in range(2):
                assert torch.equal(model(token).logits, expected)
            assert (o.experts.stats().hits, o.experts.stats().misses) == (0, 16)


def test_what_is_written_in_host_memory_counts() -> None:
    model = mixture("Mixtral")
    token = _tokens(1, 1)
    with torch.no_grad(), _routed(model) as o:
        before = model(token).logits
        model.model.layers[1].mlp.experts.down_proj.mul_(2)
        after = model(token).logits
        assert not torch.equal(before, after)
        o.close()
        assert torch.equal(model(token).logits, after)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_backward_brings_the_experts_of_its_forward_again(checkpointing: bool) -> None:
    model = mixture("Mixtral").requires_grad_(False)
    model.set_experts_implementation("eager")
    for layer in model.model.layers:
        layer.input_layernorm.weight.requires_grad_(True)
    if checkpointing:
        model.train()
        enable_checkpointing(model)
    tokens = _tokens(1, 3)

    def gradients(of: Any) -> list[Any]:
        of.zero_grad()
        of(tokens, use_cache=False).logits.square().sum().backward()
        return [layer.input_layernorm.weight.grad.clone() for layer in of.model.layers]

    expected = gradients(copy.deepcopy(model))
    with _routed(model):
        for _ in range(2):
            found = gradients(model)
            assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_failure_in_forward_leaves_the_model_usable() -> None:
    model = mixture("Mixtral")
    token = _tokens(1, 1)
    with torch.no_grad():
        expected = model(token).logits
        with _routed(model):
            handle = model.model.layers[2].mlp.experts.act_fn.register_forward_hook(
                lambda *_: 1 / 0
            )
            with pytest.raises(ZeroDivisionError):
                model(token)
            handle.remove()
            assert torch.equal(model(token).logits, expected)


def test_errors() -> None:
    model = mixture("Mixtral")
    before = picture(model)
    with pytest.raises(ValueError, match="no effect: all weights fit"):
        _routed(model, "64MiB")
    with pytest.raises(BudgetError, match="the experts of one layer take 2 MiB"):
        _routed(model, "2MiB", ring=None)
    with pytest.raises(ValueError, match="with a smaller keep_below"):
        _routed(model, keep_below=400_000)
    with pytest.raises(ValueError, match="cannot be used together"):
        _routed(model, packing="bf16-12")
    with pytest.raises(ValueError, match="'whole' or 'routed'"):
        small(model, experts="all")
    with pytest.raises(ValueError, match="no module of the model has one row"):
        _routed(torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))))
    assert_same(before, picture(model))
    with _routed(model) as o, pytest.raises(ValueError, match="nobody can predict"):
        o.predict()


# The cache alone


def _cache(device: Device, slots: int, layers: int = 2) -> tuple[ExpertCache, Any]:
    """Layers of 8 experts with 512 + 256 bytes each, in which each byte names layer and expert."""
    host = device.alloc_pinned(layers * 8 * 768)
    for layer in range(layers):
        for expert in range(8):
            for begin, each in ((0, 512), (8 * 512, 256)):
                at = layer * 8 * 768 + begin + expert * each
                host.view()[at : at + each] = bytes([16 * layer + expert]) * each
    made = [
        ExpertLayer(host.address + n * 8 * 768, 8 * 768, 8, (Rows(0, 512), Rows(8 * 512, 256)))
        for n in range(layers)
    ]
    return ExpertCache(device, made, slots), host


def _found(device: Device, cache: ExpertCache, stream: Any, expert: int) -> set[int]:
    out = bytearray(768)
    view = memoryview(out)
    device.copy(view[:512], Span(cache.place + expert * 512, 512, "device"), stream=stream)
    device.copy(
        view[512:], Span(cache.place + 8 * 512 + expert * 256, 256, "device"), stream=stream
    )
    stream.synchronize()
    return set(out)


def test_least_recently_used_experts_leave(driver: Driver, device: Device) -> None:
    cache, host = _cache(device, slots=4)  # two for each layer
    with device.stream() as stream:
        cache.begin(1, (5, 6, 7), stream)  # takes none from another layer
        cache.end(stream)
        for chosen, hits in [((1,), 0), ((2,), 0), ((1,), 1), ((3,), 1), ((1,), 2), ((2,), 2)]:
            cache.begin(0, chosen, stream)
            assert all(_found(device, cache, stream, each) == {each} for each in chosen)
            cache.end(stream)
            assert cache.stats().hits == hits
        cache.close()
    host.close()


def test_random_uses_on_several_streams(driver: Driver, device: Device) -> None:
    choose = random.Random(3)
    for slots in (0, 1, 3, 16):
        cache, host = _cache(device, slots)
        streams = [device.stream() for _ in range(3)]
        for _ in range(40):
            layer, stream = choose.randrange(2), choose.choice(streams)
            chosen = tuple(sorted(choose.sample(range(8), choose.randint(1, 8))))
            cache.begin(layer, chosen, stream)
            for each in chosen:
                assert _found(device, cache, stream, each) == {16 * layer + each}
            cache.end(stream)
        stats = cache.stats()
        assert stats.copied_bytes == stats.misses * 768
        if slots == 16:
            assert stats.misses <= 16
        cache.close()
        host.close()
        for stream in streams:
            stream.close()


def test_two_layers_at_once_are_refused(driver: Driver, device: Device) -> None:
    cache, host = _cache(device, slots=2)
    with device.stream() as stream:
        cache.begin(0, (1,), stream)
        cache.begin(0, (1,), stream)  # the same once more
        cache.end(stream)
        with pytest.raises(RuntimeError, match="two layers are used at once"):
            cache.begin(1, (1,), stream)
        cache.end(stream)
        cache.begin(1, (1,), stream)
        cache.end(stream)
        cache.close()
        cache.close()
    host.close()


@pytest.mark.expects_reports
@pytest.mark.parametrize("waits", [True, False])
def test_a_use_comes_behind_the_one_before(
    device: Device, sim: Simulator, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    if not waits:
        monkeypatch.setattr(ExpertCache, "_come_behind_last_use", lambda *_: None)
    cache, host = _cache(device, slots=2)
    with device.stream() as one, device.stream() as other, device.alloc(8) as result:
        cache.begin(0, (1,), one)
        device.kernels.checksum(cache.place, cache.place_bytes // 4, result, stream=one)
        cache.end(one)
        cache.begin(1, (1,), other)
        cache.end(other)
        one.synchronize()
        cache.close()
    host.close()
    assert bool(sim.reports()) is not waits
    sim.clear_reports()
