"""offload() on a card that is not the first one, and which it takes where none is named."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import vramkit
from vramkit import Pool
from vramkit.weights.preparing import chosen_device

from .models import example, stack, torch
from .offloads import MIB, small

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vramkit.driver import Driver

pytestmark = pytest.mark.sim_only

# The second card


@pytest.fixture
def two_cards(driver: Driver, simulated: None) -> Iterator[Driver]:
    """Nothing may be on the first one."""
    first = driver.device(0)
    before = first.memory_info()
    yield driver
    assert first.memory_info() == before


def used(driver: Driver) -> int:
    info = driver.device(1).memory_info()
    return info.total - info.free


@pytest.mark.sim(devices=2)
@pytest.mark.parametrize("settings", [{}, {"packing": "bf16-12"}], ids=["plain", "packed"])
def test_inference_on_the_second_card(two_cards: Driver, settings: dict[str, Any]) -> None:
    model, inputs, _ = example("llama")
    model.to(torch.bfloat16)
    before = used(two_cards)
    with torch.no_grad():
        expected = model(**inputs).logits
        with small(model, "3.8MiB", device=1, **settings) as o:
            assert o.device.ordinal == 1
            for _ in range(3):
                assert torch.equal(model(**inputs).logits, expected)
                assert used(two_cards) > before
            assert o.report().sent_bytes > 0
        assert torch.equal(model(**inputs).logits, expected)
    assert used(two_cards) == before


@pytest.mark.sim(devices=2)
def test_training_on_the_second_card(two_cards: Driver) -> None:
    model = stack(*[400] * 9)
    for number, layer in enumerate(model):
        layer.weight.requires_grad_(False)
        layer.bias.requires_grad_(number % 2 == 0)
    resident = copy.deepcopy(model)
    x = torch.randn(3, 400)

    def gradients(trained: Any) -> list[Any]:
        trained.zero_grad()
        trained(x).square().mean().backward()
        return [layer.bias.grad.clone() for layer in trained[::2]]

    expected = gradients(resident)
    with small(model, "3MiB", device=two_cards.device(1)) as o:
        for _ in range(3):
            assert all(map(torch.equal, gradients(model), expected))
        assert o.report().sent_bytes > 0


@pytest.mark.sim(devices=2)
def test_weights_give_way_on_the_second_card(two_cards: Driver) -> None:
    model = stack(*[512] * 13)
    x = torch.randn(3, 512)
    with (
        torch.no_grad(),
        Pool(device=two_cards.device(1), limit=16 * MIB, background=False) as pool,
    ):
        expected = model(x)
        with small(model, 9 * MIB, ring=3 * MIB, device=1, pool=pool) as o:
            assert torch.equal(model(x), expected)
            cache = pool.malloc(15 * MIB)
            for _ in range(2):
                assert torch.equal(model(x), expected)
            assert o.report().giving_way.away > 2
            pool.free(cache)
            for _ in range(40):
                assert torch.equal(model(x), expected)
            assert o.report().giving_way.away == 0
        with (
            Pool(device=two_cards.device(0), background=False) as other,
            pytest.raises(ValueError, match=r"the pool is of .* and the weights are for"),
        ):
            small(model, 9 * MIB, ring=3 * MIB, device=1, pool=other)


# The card that is taken where none is named: PyTorch and driver of a machine with several


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    cards = SimpleNamespace(sim=None, device=lambda ordinal=0: ordinal)
    monkeypatch.setattr(vramkit.driver, "open", lambda: cards)
    current = SimpleNamespace(is_available=lambda: True, current_device=lambda: 2)
    return SimpleNamespace(cuda=current)


def model_on(*places: str) -> Any:
    """Its first weight is a small one that is kept, the others are streamed."""
    weights = [
        SimpleNamespace(tensor=SimpleNamespace(device=torch.device(place)), names=(f"{n}.weight",))
        for n, place in enumerate(places)
    ]
    return SimpleNamespace(kept=weights[:1], weights=[[weight] for weight in weights[1:]])


def test_a_model_on_a_card_stays_there(cuda: Any) -> None:
    assert chosen_device(cuda, None, model_on("cuda:1", "cuda:1")) == 1
    assert chosen_device(cuda, None, model_on("cpu", "cuda:1", "cpu")) == 1
    assert chosen_device(cuda, None, model_on("cuda:3", "cpu")) == 3


def test_a_model_in_host_memory_comes_to_the_current_card_of_pytorch(cuda: Any) -> None:
    assert chosen_device(cuda, None, model_on("cpu", "cpu")) == 2
    assert chosen_device(cuda, None, model_on("meta", "cpu")) == 2
    cuda.cuda.is_available = lambda: False
    assert chosen_device(cuda, None, model_on("cpu", "cpu")) == 0


def test_a_model_on_several_cards_needs_a_name(cuda: Any) -> None:
    model = model_on("cuda:1", "cpu", "cuda:0", "cuda:1")
    with pytest.raises(ValueError, match=r"cuda:0 \(2.weight\) and cuda:1 \(0.weight\); give dev"):
        chosen_device(cuda, None, model)
    assert chosen_device(cuda, 1, model) == 1
