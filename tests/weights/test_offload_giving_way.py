"""offload() with a pool: a shortage takes resident weights back, and the model runs on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import vramkit
from vramkit import Pool
from vramkit.driver import OutOfMemoryError
from vramkit.weights import Offload

from .models import example, stack, torch
from .offloads import assert_same, picture, small

MIB = 1 << 20

pytestmark = pytest.mark.sim_only

WIDTHS = [512] * 13
"""Twelve layers of 1 MiB."""


@pytest.fixture
def pool(simulated: None) -> Iterator[Pool]:
    with Pool(device=vramkit.driver.open().device(), limit=16 * MIB, background=False) as made:
        yield made
        assert made.check_invariants() == ""


def offloaded(model: Any, pool: Pool | None, budget: int = 9 * MIB, **settings: Any) -> Offload:
    """A ring of two layers, and resident ones, of which all but the first give way."""
    return small(model, budget, **{"ring": 3 * MIB, "pool": pool, **settings})


def away(o: Offload) -> int:
    stats = o.report().giving_way
    assert stats is not None
    return stats.away


def test_results_are_the_same_before_during_and_after_a_shortage(
    inference: None, pool: Pool
) -> None:
    model = stack(*WIDTHS)
    x = torch.randn(3, 512)
    expected = model(x)
    before = picture(model)
    with offloaded(model, pool) as o:
        assert torch.equal(model(x), expected)
        first = o.report()
        assert first.giving_way is not None
        assert first.giving_way.groups > 2
        assert "none did so far" in str(first)
        cache = pool.malloc(15 * MIB)
        assert away(o) == first.giving_way.groups
        for _ in range(3):
            assert torch.equal(model(x), expected)
        during = o.report()
        assert during.giving_way is not None
        assert during.resident_bytes == first.resident_bytes - during.giving_way.away_bytes
        assert during.streamed_bytes > first.streamed_bytes
        assert f"{first.giving_way.groups} did" in str(during)
        pool.free(cache)
        for _ in range(40):
            assert torch.equal(model(x), expected)
        after = o.report()
        assert after.giving_way is not None
        assert after.giving_way.away == 0
        assert after.giving_way.returned == first.giving_way.groups
        assert after.resident_bytes == first.resident_bytes
        misses = o.stats().misses
        assert torch.equal(model(x), expected)
        assert o.stats().misses == misses
    assert_same(before, picture(model))
    assert pool.stats().current_usage == 0


def test_a_cache_that_grows_in_every_pass(inference: None, pool: Pool) -> None:
    """As that of generate() does: each layer allocates in the middle of the pass."""
    model = stack(*WIDTHS)
    x = torch.randn(3, 512)
    expected = model(x)
    grown: list[int] = []
    for layer in model[::4]:
        layer.register_forward_hook(lambda *_: grown.append(pool.malloc(MIB)))
    with offloaded(model, pool) as o:
        for _ in range(5):
            assert torch.equal(model(x), expected)
        assert away(o) > 0
        assert len(grown) == 15
        for block in grown:
            pool.free(block)


def test_more_than_all_residents_is_out_of_memory(inference: None, pool: Pool) -> None:
    model = stack(*WIDTHS)
    x = torch.randn(3, 512)
    expected = model(x)
    with offloaded(model, pool) as o:
        held = pool.malloc(MIB)
        with pytest.raises(OutOfMemoryError):
            pool.malloc(16 * MIB)
        assert torch.equal(model(x), expected)
        pool.free(held)
        for _ in range(40):
            assert torch.equal(model(x), expected)
        assert away(o) == 0


def test_forward_that_runs_out_of_memory_can_be_called_again(inference: None, pool: Pool) -> None:
    model = stack(*WIDTHS)
    x = torch.randn(3, 512)
    expected = model(x)
    asked: list[int] = []

    def greedy(*_: Any) -> None:
        if not asked:
            asked.append(1)
            held = pool.malloc(MIB)
            try:
                pool.malloc(16 * MIB)
            finally:
                pool.free(held)

    model[6].register_forward_pre_hook(greedy)
    with offloaded(model, pool) as o:
        with pytest.raises(OutOfMemoryError):
            model(x)
        assert away(o) > 0
        for _ in range(3):
            assert torch.equal(model(x), expected)


def test_gradients_if_weights_give_way_between_forward_and_backward(
    simulated: None, pool: Pool
) -> None:
    """What autograd saved of a resident group is found again in the ring."""
    model = stack(*WIDTHS)
    model.requires_grad_(False)
    x = torch.randn(3, 512, requires_grad=True)

    def gradient() -> Any:
        x.grad = None
        model(x).sum().backward()
        return x.grad.clone()

    expected = gradient()
    for when in ("before", "between", "in backward"):
        with offloaded(model, pool) as o:
            assert torch.equal(gradient(), expected)
            x.grad = None
            cache: list[int] = []

            def grow(*_: Any, cache: list[int] = cache) -> None:
                cache.append(pool.malloc(15 * MIB))

            if when == "before":
                grow()
            y = model[6:](model[:6](x)) if when == "in backward" else model(x)
            if when == "between":
                grow()
            if when == "in backward":
                y.grad_fn.register_hook(grow)
            y.sum().backward()
            assert torch.equal(x.grad, expected), when
            assert cache
            assert away(o) > 0
            pool.free(cache[0])
            assert torch.equal(gradient(), expected)


def test_parameters_that_may_give_way_are_those_in_host_memory(inference: None, pool: Pool) -> None:
    model = stack(*WIDTHS)
    x = torch.randn(3, 512)
    with offloaded(model, pool) as o:
        model(x)
        cache = pool.malloc(15 * MIB)
        assert away(o) > 0
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, model.state_dict()[name])
        # Writing to one counts from the next forward on, resident or not.
        for layer in model:
            layer.weight.mul_(2)
        doubled = stack(*WIDTHS)
        for layer in doubled:
            layer.weight.mul_(2)
        assert torch.equal(model(x), doubled(x))
        pool.free(cache)
        for layer in (*model, *doubled):
            layer.weight.mul_(0.5)
        assert torch.equal(model(x), doubled(x))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_attention_and_feed_forward_parts(inference: None, pool: Pool, family: str) -> None:
    model, inputs, _ = example(family)
    expected = model(**inputs).logits
    with small(model, "5MiB", pool=pool) as o:
        assert torch.equal(model(**inputs).logits, expected)
        cache = pool.malloc(16 * MIB)
        assert away(o) > 0
        for _ in range(2):
            assert torch.equal(model(**inputs).logits, expected)
        pool.free(cache)
        assert torch.equal(model(**inputs).logits, expected)


def test_packed_weights_give_way_too(inference: None, pool: Pool) -> None:
    model = stack(*[724] * 13, dtype=torch.bfloat16)
    x = torch.randn(3, 724, dtype=torch.bfloat16)
    expected = model(x)
    with offloaded(model, pool, 12 * MIB, packing="bf16-12") as o:
        assert torch.equal(model(x), expected)
        cache = pool.malloc(15 * MIB)
        assert away(o) > 0
        for _ in range(2):
            assert torch.equal(model(x), expected)
        pool.free(cache)
        for _ in range(20):
            assert torch.equal(model(x), expected)
        assert away(o) == 0


def test_two_models_in_one_pool(inference: None, pool: Pool) -> None:
    """Each gives way to the other one."""
    models = [stack(*WIDTHS), stack(*WIDTHS)]
    x = torch.randn(3, 512)
    expected = models[0](x)
    with offloaded(models[0], pool) as one:
        held = pool.malloc(8 * MIB)
        with offloaded(models[1], pool) as two:
            assert away(one) > 0
            assert away(two) == 0
            for _ in range(3):
                for model in models:
                    assert torch.equal(model(x), expected)
        pool.free(held)


def test_without_a_pool_the_report_says_that_the_budget_is_fixed(inference: None) -> None:
    with offloaded(stack(*WIDTHS), None) as o:
        report = o.report()
        assert report.giving_way is None
        assert "fixed: resident weights stay" in str(report)
        assert "vramkit.integrations.torch.install()" in str(report)


def test_a_pool_without_effect_is_an_error(inference: None, pool: Pool) -> None:
    with pytest.raises(ValueError, match="pool has no effect: all weights fit into the budget"):
        offloaded(stack(*WIDTHS), pool, 20 * MIB, ring=None)
    assert pool.stats().allocation_count == 0


def test_a_report_after_the_end(inference: None, pool: Pool) -> None:
    model = stack(*WIDTHS)
    with offloaded(model, pool) as o:
        model(torch.randn(3, 512))
        pool.free(pool.malloc(15 * MIB))
        gave_way = away(o)
    report = o.report()
    assert report.giving_way is not None
    assert report.giving_way.gave_way == gave_way > 0


def test_bad_input(inference: None, pool: Pool) -> None:
    given: Any = "the pool"
    with pytest.raises(TypeError, match=r"it may be None, or a vramkit\.Pool"):
        offloaded(stack(*WIDTHS), given)


def test_a_part_that_returns_its_weight_returns_a_copy_wherever_it_is(
    inference: None, pool: Pool
) -> None:
    class Returns(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return super().forward(x), self.weight.detach()

    class Chain(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([Returns(512, 512) for _ in range(12)])

        def forward(self, x: Any) -> Any:
            weights = []
            for layer in self.layers:
                x, weight = layer(x)
                weights.append(weight)
            return x, weights

    model = Chain().eval()
    expected = [layer.weight.clone() for layer in model.layers]
    x = torch.randn(3, 512)
    with offloaded(model, pool) as o:
        for turn in range(3):
            _, weights = model(x)
            assert all(map(torch.equal, weights, expected)), turn
            if turn == 0:
                cache = pool.malloc(15 * MIB)
                assert away(o) > 0
        pool.free(cache)
