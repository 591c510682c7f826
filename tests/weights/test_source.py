"""Models on the meta device get their weights from a checkpoint, straight into the slab."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vramkit.weights import ModelError, UnsupportedModel

from .models import example, stack, torch
from .offloads import small

if TYPE_CHECKING:
    from vramkit.driver import Driver

safetensors = pytest.importorskip("safetensors.torch")

MIB = 1 << 20
pytestmark = [pytest.mark.sim_only, pytest.mark.usefixtures("inference")]


def empty(model: Any) -> Any:
    """The same model without values; buffers that are computed keep theirs."""
    with torch.device("meta"):
        copy = type(model)(model.config)
    copy.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    copy.generation_config = model.generation_config
    return copy.eval()


def saved(model: Any, path: Path) -> Path:
    safetensors.save_file({name: t.contiguous() for name, t in model.state_dict().items()}, path)
    return path


def test_a_checkpoint_is_read_into_the_slab(driver: Driver, tmp_path: Path) -> None:
    model, inputs, _ = example("llama")
    path = saved(model, tmp_path / "model.safetensors")
    expected = model(**inputs).logits
    loaded = empty(model)
    seen: list[int] = []
    with small(loaded, source=path, progress=lambda done, total: seen.append(done)) as o:
        assert torch.equal(loaded(**inputs).logits, expected)
        assert seen == sorted(seen)
        assert seen[-1] == o.report().host_bytes
    assert torch.equal(loaded(**inputs).logits, expected)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_checkpoint_of_several_files(driver: Driver, tmp_path: Path) -> None:
    model = stack(*[400] * 8)
    x = torch.randn(2, 400)
    state = model.state_dict()
    names = list(state)
    files = {"one.safetensors": names[:5], "two.safetensors": names[5:]}
    for file, inside in files.items():
        safetensors.save_file({name: state[name] for name in inside}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {n: f for f, inside in files.items() for n in inside}})
    )
    for source in (tmp_path, index, str(index)):
        with torch.device("meta"):
            loaded = torch.nn.Sequential(*[torch.nn.Linear(400, 400) for _ in range(7)])
        with small(loaded, source=source):
            assert torch.equal(loaded(x), model(x))


def test_the_models_own_loader_writes_into_the_slab(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    expected = model(**inputs).logits
    loaded = empty(model)
    flags = [tensor.requires_grad for tensor in loaded.parameters()]
    with small(loaded, source=lambda given: given.load_state_dict(model.state_dict())):
        assert torch.equal(loaded(**inputs).logits, expected)
    assert flags == [tensor.requires_grad for tensor in loaded.parameters()]
    with pytest.raises(ModelError, match=r"the source replaced \S+ instead of writing its values"):
        small(
            empty(model),
            source=lambda given: given.load_state_dict(model.state_dict(), assign=True),
        )


def test_sources_that_do_not_fit(driver: Driver, tmp_path: Path) -> None:
    model = stack(*[400] * 8)
    state = model.state_dict()

    def meta() -> Any:
        with torch.device("meta"):
            return torch.nn.Sequential(*[torch.nn.Linear(400, 400) for _ in range(7)])

    with pytest.raises(ValueError, match=r"source has no effect: 0.weight has its values already"):
        small(model, source=tmp_path)
    with pytest.raises(UnsupportedModel, match="is on the meta device and has no values"):
        small(meta())
    with pytest.raises(ModelError, match=r"has no \*.safetensors"):
        small(meta(), source=tmp_path)
    with pytest.raises(ModelError, match="is no checkpoint"):
        small(meta(), source=tmp_path / "nowhere.bin")
    missing = tmp_path / "missing.safetensors"
    safetensors.save_file({name: t for name, t in state.items() if name != "3.weight"}, missing)
    with pytest.raises(ModelError, match=r"3.weight is not in .*; source may also be a function"):
        small(meta(), source=missing)
    other = tmp_path / "other.safetensors"
    safetensors.save_file(state | {"3.weight": state["3.weight"].half()}, other)
    with pytest.raises(ModelError, match=r"3.weight is F16 \(400, 400\) in .*, and F32"):
        small(meta(), source=other)
    short = tmp_path / "short.safetensors"
    safetensors.save_file(state, short)
    os.truncate(short, short.stat().st_size - 100)
    with pytest.raises(ModelError, match="ends inside of"):
        small(meta(), source=short)
