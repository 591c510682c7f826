"""What a plan reads of a model: headers of checkpoints, configs, modules, and their arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramkit.weights import Group, ModelError
from vramkit.weights.planner import config as config_module
from vramkit.weights.planner.arithmetic import Arithmetic, Experts, Rates, Tensor, count, seconds
from vramkit.weights.planner.shape import NO_EXPERTS
from vramkit.weights.planner.source import read_model

from .headers import llama_layers, write_header

WIDE: dict[str, Any] = {"hidden": 1024, "intermediate": 4096, "keys": 256}
RATES = Rates(matmul_flops_per_s=1e12, attention_flops_per_s=1e11, weights_bytes_per_s=1e9)


# Headers


def test_a_header_gives_groups_by_layer_with_attention_first(tmp_path: Path) -> None:
    shapes = {
        "lm_head.weight": (4096, 1024),
        "model.embed_tokens.weight": (4096, 1024),
        **llama_layers(11, **WIDE),
        "model.norm.weight": (1024,),
    }
    found = read_model(write_header(tmp_path / "m.safetensors", dict(sorted(shapes.items()))))
    attn, ffn = 2 * 1024 * (2 * 1024 + 2 * 256), 2 * 3 * 1024 * 4096
    assert found.groups[0] == Group(0, "embed_tokens", 2 * 4096 * 1024)
    assert [g.name for g in found.groups[1:-1]] == ["attn", "ffn"] * 11
    assert [g.nbytes for g in found.groups[1:-1]] == [attn, ffn] * 11
    assert found.groups[-1].name == "lm_head"
    layers = [group.layer for group in found.groups]
    assert layers == sorted(layers) and len(set(layers)) == 13  # 10 comes behind 9
    assert found.kept_bytes == 2 * 1024 * (11 * 2 + 1)
    assert found.arithmetic[0].weights == 0  # rows are looked up
    assert found.arithmetic[1] == Arithmetic(weights=attn // 2, nbytes=attn, attention_width=1024)
    assert found.arithmetic[-1].weights == 4096 * 1024


def test_nothing_behind_the_header_is_read(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.safetensors", llama_layers(2))
    assert path.stat().st_size < 10_000  # of 3.4 GB
    assert sum(group.nbytes for group in read_model(path).groups) == 2 * 1_711_276_032


def test_a_checkpoint_of_several_files(tmp_path: Path) -> None:
    shapes = llama_layers(4, **WIDE)
    names = sorted(shapes)
    parts = {"a.safetensors": names[:20], "b.safetensors": names[20:]}
    for file, inside in parts.items():
        write_header(tmp_path / file, {name: shapes[name] for name in inside})
    index = tmp_path / "model.safetensors.index.json"
    where = {name: file for file, inside in parts.items() for name in inside}
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    assert read_model(index).groups == read_model(tmp_path).groups
    assert len(read_model(index).groups) == 8
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"names 2 files, of which 1 are not beside it \(b\.safe"):
        read_model(index)
    for content, message in [('{"weight_map": {}}', "names no files"), ("[]", "is no index")]:
        index.write_text(content)
        with pytest.raises(ModelError, match=message):
            read_model(tmp_path)


def test_an_encoder_comes_before_its_decoder(tmp_path: Path) -> None:
    shapes = {
        f"{stack}.block.{n}.layer.{part}.{name}.weight": (rows, 1024)
        for stack, rows in (("decoder", 2048), ("encoder", 1024))
        for n in range(2)
        for part, name in ((0, "SelfAttention.q"), (1, "DenseReluDense.wi"))
    }
    found = read_model(write_header(tmp_path / "m.safetensors", shapes))
    assert len(found.groups) == 8
    assert len({group.layer for group in found.groups}) == 4
    # The decoder's are larger, and stand first in the file.
    assert [group.nbytes for group in found.groups] == [2 << 20] * 4 + [4 << 20] * 4


def test_a_head_tied_to_the_embedding_computes_at_the_end(tmp_path: Path) -> None:
    layers = llama_layers(2, **WIDE)
    tied = {"model.embed_tokens.weight": (8192, 1024), **layers}
    apart = {**tied, "lm_head.weight": (8192, 1024)}
    one = read_model(write_header(tmp_path / "one.safetensors", tied))
    two = read_model(write_header(tmp_path / "two.safetensors", apart))
    assert len(two.groups) == len(one.groups) + 1
    assert sum(w.weights for w in one.arithmetic) == sum(w.weights for w in two.arithmetic)
    assert one.arithmetic[-1].weights == 3 * 1024 * 4096 + 8192 * 1024


def test_experts_count_by_how_many_a_token_uses(tmp_path: Path) -> None:
    shapes = {"model.layers.0.mlp.gate.weight": (8, 1024)}
    for expert in range(8):
        shapes[f"model.layers.0.mlp.experts.{expert}.w1.weight"] = (4096, 1024)
    path = write_header(tmp_path / "m.safetensors", shapes)
    (unknown,) = read_model(path).arithmetic
    assert read_model(path).notes == (NO_EXPERTS,)
    assert unknown.expert_share == 1.0
    (tmp_path / "config.json").write_text('{"num_local_experts": 8, "num_experts_per_tok": 2}')
    found = read_model(path)
    assert [group.name for group in found.groups] == ["ffn"] and found.notes == ()
    (work,) = found.arithmetic
    assert (work.weights, work.expert_weights) == (8 * 1024, 8 * 4096 * 1024)
    assert work.expert_share == 0.25


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no safetensors file"),
        (b"\xff" * 100, "is no safetensors file"),
        ((50).to_bytes(8, "little") + b"{}", "is no safetensors file"),
        ((2).to_bytes(8, "little") + b"[]", "cannot be read"),
        ((9).to_bytes(8, "little") + b'{"a":"b"}', "cannot be read"),
        ((2).to_bytes(8, "little") + b"{}", "has no weights worth streaming"),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_model(path)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"")
    (tmp_path / "other.json").write_text("[]")
    (tmp_path / "empty.json").write_text("{}")
    for path, message in [
        (tmp_path / "nothing", "there is no .*nothing; the model may be a folder"),
        (tmp_path, "has neither config.json nor"),
        (tmp_path / "weights.bin", "is neither a config nor a checkpoint"),
        (tmp_path / "other.json", "is no transformers config"),
        (tmp_path / "empty.json", "has no model_type"),
    ]:
        with pytest.raises(ModelError, match=message):
            read_model(path)
    for other in (7, [], ["x"], None):
        with pytest.raises(TypeError, match=r"model is a .*; it may be a folder"):
            read_model(other)


# Configs, without the packages that they need


@pytest.fixture
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "find_spec", lambda name: None)


@pytest.mark.usefixtures("without_transformers")
def test_a_config_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModuleNotFoundError, match=r"needs torch and transformers, not installed"):
        read_model(tmp_path)


@pytest.mark.usefixtures("without_transformers")
def test_a_checkpoint_serves_where_packages_are_missing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    write_header(tmp_path / "model.safetensors", llama_layers(2, **WIDE))
    found = read_model(tmp_path)
    assert len(found.groups) == 4
    assert found.notes == (
        "groups are by the names in the checkpoint's header: torch and transformers not installed",
    )


def test_a_quantised_model_needs_its_checkpoint(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "quantization_config": {"bits": 4}}')
    with pytest.raises(ModelError, match=r"quantised model, .*give the checkpoint itself"):
        read_model(tmp_path)
    write_header(tmp_path / "model.safetensors", llama_layers(2, **WIDE))
    assert "the model is quantised" in read_model(tmp_path).notes[0]


# Arithmetic


def test_many_tokens_are_bound_by_arithmetic_and_few_by_reading() -> None:
    work = Arithmetic(weights=10**6, nbytes=2 * 10**6)
    assert seconds(work, RATES, 10_000, 1) == pytest.approx(2 * 10**6 * 10_000 / 1e12)
    assert seconds(work, RATES, 1, 1) == pytest.approx(2 * 10**6 / 1e9)
    assert seconds(work, RATES, 100, 100) == pytest.approx(seconds(work, RATES, 10_000, 1))


def test_attention_grows_with_the_square_of_a_sequence_and_with_the_batch() -> None:
    work = Arithmetic(attention_width=1024)
    assert seconds(work, RATES, 1000, 1) == pytest.approx(4 * 1024 * 1000 * 1001 / 2 / 1e11)
    assert seconds(work, RATES, 1000, 3) == pytest.approx(3 * seconds(work, RATES, 1000, 1))


def test_few_tokens_read_few_experts() -> None:
    work = Arithmetic(expert_weights=8 * 10**6, expert_bytes=16 * 10**6, expert_share=0.25)
    assert seconds(work, RATES, 1, 1) == pytest.approx(4 * 10**6 / 1e9)
    assert seconds(work, RATES, 3, 1) == pytest.approx(12 * 10**6 / 1e9)
    assert seconds(work, RATES, 100, 1) == pytest.approx(16 * 10**6 / 1e9)
    assert seconds(work, RATES, 100_000, 1) == pytest.approx(2 * 2 * 10**6 * 100_000 / 1e12)


@pytest.mark.parametrize(
    "tensors",
    [
        [("q_proj", (2048, 512)), ("k_proj", (256, 512)), ("o_proj", (512, 2048))],
        [("c_attn", (2048, 6144)), ("c_proj", (2048, 2048))],
        [("query_key_value", (6144, 2048)), ("last", (2048, 2048))],
    ],
)
def test_the_width_of_an_attention_is_that_of_its_heads(
    tensors: list[tuple[str, tuple[int, ...]]],
) -> None:
    inside = [Tensor(f"attn.{name}.weight", shape, 2) for name, shape in tensors]
    assert count(inside, experts=None).attention_width == 2048


def test_a_layer_that_is_one_group_counts_all_that_attends_and_nothing_else() -> None:
    layer = [
        Tensor("layers.0.self_attn.o_proj.weight", (512, 1024), 2),
        Tensor("layers.0.cross_attn.o_proj.weight", (512, 2048), 2),
        Tensor("layers.0.mlp.c_proj.weight", (512, 4096), 2),
    ]
    assert count(layer, experts=None).attention_width == 1024 + 2048
    assert count(layer[2:], experts=None).attention_width == 0


def test_vectors_do_not_count() -> None:
    work = count([Tensor("norm.weight", (4096,), 8192)], experts=Experts(8, 2))
    assert work == Arithmetic()
