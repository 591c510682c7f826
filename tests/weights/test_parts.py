"""Into which parts a model is divided: whatever calls them, and whoever holds their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from vramkit.weights import UnsupportedModel
from vramkit.weights.model import analyse

from .host_reads import HostReads
from .models import stack, torch
from .offloads import assert_same, picture, small
from .support import PROFILE

if TYPE_CHECKING:
    from vramkit.driver import Driver

# The simulated GPU's memory serves PyTorch's CPU build only.
pytestmark = [
    pytest.mark.sim_only,
    pytest.mark.usefixtures("inference"),
    pytest.mark.sim(profile=PROFILE),
]


def parts(model: Any) -> dict[str, tuple[int, ...]]:
    return {part.name: part.groups for part in analyse(torch, model, small=4096).parts}


class Walks(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Walks over a Sequential, and so does who is called after it."""

    def __init__(self, called: bool) -> None:
        super().__init__()
        self.layers, self.called = stack(200, 200, 200), called

    def forward(self, x: Any) -> Any:
        if self.called:
            return self.layers(x)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("called", [True, False])
def test_a_sequential_that_is_walked_over_or_called(driver: Driver, called: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Walks(called) for _ in range(8)])
    x = torch.randn(2, 200)
    expected = model(x)
    found = parts(model)
    assert list(found)[:2] == ["0.layers.0", "0.layers.1"]
    assert found["0.layers.0"] == found["0.layers.1"] == (0,)
    with small(model, "2.2MiB", ring=None) as o:
        assert len(o.manager.layout.groups) == 8
        with HostReads(o._store.addresses[0], o._store.nbytes) as reads:
            model(x)
        assert reads.found == []
        for _ in range(2):
            before = o.stats()
            assert torch.equal(model(x), expected)
            assert o.stats().copied_bytes - before.copied_bytes == o.report().streamed_bytes > 0
            assert o.stats().misses == before.misses
        assert o.report().outside.copies == 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("masked", [False, True])
def test_an_encoder_of_pytorch_with_its_own_kernels(
    driver: Driver, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It chooses other kernels for a layer that has hooks."""
    fused, calls = torch._transformer_encoder_layer_fwd, list[int]()
    monkeypatch.setattr(
        torch, "_transformer_encoder_layer_fwd", lambda *args: (calls.append(1), fused(*args))[1]
    )
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6).eval()
    mask = torch.zeros(2, 7, dtype=torch.bool)
    mask[1, 5:] = masked
    inputs = {"src": torch.randn(2, 7, 128), "src_key_padding_mask": mask if masked else None}
    expected, before = model(**inputs), picture(model)
    assert parts(model)["layers.2"] == (2,)
    with small(model, "2.7MiB", ring=None) as o:
        for _ in range(3):
            assert torch.equal(model(**inputs), expected)
        assert len(calls) == 4 * 6
        assert o.report().streamed_bytes > 0
        with pytest.raises(AssertionError, match="query should be unbatched"):
            model(torch.randn(1, 1, 1, 128))
        assert torch.equal(model(**inputs), expected)
    assert_same(before, picture(model))
    assert torch.equal(model(**inputs), expected)


class Mixes(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Has a large weight of its own beside its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.nn.Parameter(torch.randn(300, 300) / 20)
        self.inner = torch.nn.Linear(300, 300)

    def forward(self, x: Any) -> Any:
        return self.inner(x @ self.own) @ self.own


def test_a_layer_with_large_weights_of_its_own_is_one_part(driver: Driver) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(*[Mixes() for _ in range(6)]), torch.randn(2, 300)
    expected = model(x)
    found = analyse(torch, model, small=4096)
    assert [part.name for part in found.parts] == list("012345") and found.kept == ()
    assert len(analyse(torch, model, small=300 * 300 * 4 + 1).kept) == 6  # small ones stay
    with small(model, "2.5MiB", ring=None) as o:
        assert torch.equal(model(x), expected)
        assert o.report().streamed_bytes > 0 == o.report().kept_bytes
    alone = torch.nn.ModuleDict({"one": Mixes(), "other": Mixes()})  # no layers
    assert parts(alone) == {"one": (0,), "other": (1,)}


@pytest.mark.parametrize("kind", ["orthogonal", "spectral_norm", "weight_norm"])
def test_parametrized_weights(driver: Driver, kind: str) -> None:
    torch.manual_seed(0)
    chosen = getattr(torch.nn.utils.parametrizations, kind)
    model = torch.nn.Sequential(*[chosen(torch.nn.Linear(200, 200)) for _ in range(8)]).eval()
    x = torch.randn(2, 200)
    expected, before = model(x), picture(model)
    with small(model, "800KiB", ring=None) as o:
        for _ in range(2):
            assert torch.equal(model(x), expected)
        assert o.report().streamed_bytes > 0 == o.report().kept_bytes
    assert_same(before, picture(model))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_a_scripted_module_is_refused_by_name_before_anything_moves(driver: Driver) -> None:
    model = stack(*[400] * 6)
    model[2] = torch.jit.script(model[2])
    before = {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
    with pytest.raises(UnsupportedModel, match=r"^2 is a ScriptModule of torch.jit, which cannot"):
        small(model, "3MiB")
    assert before == {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
