"""Plans from PyTorch modules and from transformers configs, which need no memory for weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vramkit.weights import ModelError, UnsupportedModel
from vramkit.weights.model import analyse
from vramkit.weights.planner.arithmetic import Experts, Tensor
from vramkit.weights.planner.compare import make_plan
from vramkit.weights.planner.module import shape_of_module
from vramkit.weights.planner.names import shape_of
from vramkit.weights.planner.planning import make_request
from vramkit.weights.planner.shape import NO_EXPERTS
from vramkit.weights.planner.source import read_model

from .models import FAMILIES, example, torch

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.weights.planner.shape import ModelShape

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 8192,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
EXPERTS = Experts(2, 1)


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG | changes))
    return path


def header_of(model: Any) -> ModelShape:
    """By the names of what a checkpoint of the model would hold: tied weights once."""
    tensors = [
        Tensor(name, tuple(tensor.shape), tensor.numel() * tensor.element_size())
        for name, tensor in sorted(model.named_parameters())
    ]
    return shape_of(tensors, "", experts=EXPERTS, small=4096)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "mixtral"])
def test_a_header_and_the_module_have_the_same_groups_and_arithmetic(family: str) -> None:
    model = example(family).model
    by_module = shape_of_module(torch, model, "", experts=EXPERTS, small=4096)
    by_names = header_of(model)
    assert [(g.name, g.nbytes) for g in by_names.groups] == [
        (g.name, g.nbytes) for g in by_module.groups
    ]
    assert by_names.arithmetic == by_module.arithmetic


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_all_weights_of_a_header_are_in_groups_or_kept(family: str) -> None:
    model = example(family).model
    found = header_of(model)
    whole = sum(p.numel() * p.element_size() for p in model.parameters())
    planned = sum(group.nbytes for group in found.groups) + found.kept_bytes
    assert whole <= planned <= whole + 512 * len(list(model.parameters()))


def test_a_config_is_planned_without_values(tmp_path: Path, driver: Driver) -> None:
    written(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b"}}')  # alone
    found = read_model(tmp_path)
    assert found.source == f"LlamaForCausalLM of {tmp_path / 'config.json'}"
    names = [group.name for group in found.groups]
    assert names == ["embed_tokens", *["attn", "ffn"] * 4, "lm_head"]
    assert found.groups[2].nbytes == 2 * 3 * 1024 * 4096
    made = make_plan(make_request(tmp_path, "96MiB", tokens=512), lambda what: None)
    assert made.model == found.source and made.layers == 6
    assert made.chosen.computed_s > 0 and made.chosen.streamed_bytes > 0


def test_a_config_says_of_how_many_bytes_a_weight_is(tmp_path: Path) -> None:
    (half, full) = (read_model(written(tmp_path, dtype=name)) for name in ("float16", "float32"))
    assert [2 * group.nbytes for group in half.groups] == [group.nbytes for group in full.groups]


def test_a_tied_head_computes_behind_the_last_layer(tmp_path: Path) -> None:
    apart, tied = (
        read_model(written(tmp_path, tie_word_embeddings=each)) for each in (False, True)
    )
    assert len(tied.groups) == len(apart.groups) - 1
    assert tied.arithmetic[0].weights == apart.arithmetic[0].weights == 0
    assert tied.arithmetic[-1].weights == 3 * 1024 * 4096 + 8192 * 1024


def test_an_unknown_kind_of_model_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, model_type="no-such-model", architectures=["NoSuchModel"])
    with pytest.raises(
        ModelError, match=r"transformers .* cannot build the model of .*config\.json"
    ):
        read_model(path)


def test_a_module_in_memory_is_planned_as_it_is(driver: Driver) -> None:
    with torch.device("meta"):
        layers = [torch.nn.Linear(1024, 1024, dtype=torch.bfloat16) for _ in range(6)]
        model = torch.nn.Sequential(*layers)
    made = make_plan(make_request(model, "6MiB", tokens=1, compare=False), lambda what: None)
    assert made.model == "a Sequential in memory" and made.groups == 6
    assert made.weight_bytes == 6 * (2 * 1024 * 1024 + 2048)


def test_a_module_tells_its_experts_by_its_config() -> None:
    found = read_model(example("mixtral").model)
    assert found.notes == ()
    model = torch.nn.ModuleDict({"experts": torch.nn.Linear(1024, 1024)})
    assert read_model(model).notes == (NO_EXPERTS,)


def test_only_plans_take_weights_without_values() -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(3)])
    with pytest.raises(UnsupportedModel, match="on the meta device and has no values"):
        analyse(torch, model)
    assert len(analyse(torch, model, meta=True).groups) == 3
