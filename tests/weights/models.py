"""Small models of the families that offload() must serve, with inputs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

torch.set_num_threads(1)  # tests run side by side, and idle threads of OpenMP spin


class Example(NamedTuple):
    model: Any
    inputs: dict[str, Any]
    generates: bool


def _tokens() -> Any:
    return torch.randint(3, 100, (2, 7))


def _language(kind: str, config: str, **settings: Any) -> Callable[..., Example]:
    def make(**more: Any) -> Example:
        chosen = getattr(transformers, config)(vocab_size=100, **{**settings, **more})
        model = getattr(transformers, kind)(chosen)
        model.generation_config.pad_token_id = 0
        model.generation_config.eos_token_id = None
        tokens = _tokens()
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        return Example(model, inputs, True)

    return make


def _t5() -> Example:
    config = transformers.T5Config(
        vocab_size=100, d_model=128, d_ff=512, num_layers=4, num_heads=4, d_kv=32,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    return Example(model, {"input_ids": _tokens(), "decoder_input_ids": _tokens()}, True)


def _vision() -> Example:
    config = transformers.ViTConfig(
        hidden_size=128, intermediate_size=512, num_hidden_layers=6, num_attention_heads=4,
        image_size=32, patch_size=8,
    )  # fmt: skip
    return Example(
        transformers.ViTForImageClassification(config),
        {"pixel_values": torch.randn(2, 3, 32, 32)},
        False,
    )


_LLAMA = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}

FAMILIES: dict[str, Callable[..., Example]] = {
    "llama": _language("LlamaForCausalLM", "LlamaConfig", **_LLAMA),
    "gpt2": _language("GPT2LMHeadModel", "GPT2Config", n_embd=128, n_layer=6, n_head=4),
    "opt": _language(
        "OPTForCausalLM",
        "OPTConfig",
        hidden_size=128,
        ffn_dim=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        word_embed_proj_dim=128,
    ),
    "mixtral": _language(
        "MixtralForCausalLM", "MixtralConfig", num_local_experts=2, num_experts_per_tok=1, **_LLAMA
    ),
    "t5": _t5,
    "vit": _vision,
}


def example(family: str, **settings: Any) -> Example:
    torch.manual_seed(0)
    made = FAMILIES[family](**settings)
    made.model.eval()
    return made


def stack(*widths: int, dtype: Any = None) -> Any:
    """Linear layers behind each other."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(one, other, dtype=dtype) for one, other in pairwise(widths)]
    return torch.nn.Sequential(*layers).eval()


_SIZES = {
    "vocab_size": 100,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": None,
}
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "Mixtral": ("MixtralConfig", {"num_local_experts": 8, "intermediate_size": 128}),
    "Qwen3Moe": ("Qwen3MoeConfig", {"num_experts": 8, "moe_intermediate_size": 128,
                                    "intermediate_size": 256, "head_dim": 32,
                                    "num_experts_per_tok": 2}),
    "Qwen2Moe": ("Qwen2MoeConfig", {"num_experts": 8, "moe_intermediate_size": 128,
                                    "shared_expert_intermediate_size": 128,
                                    "num_experts_per_tok": 2}),
    "GptOss": ("GptOssConfig", {"num_local_experts": 8, "intermediate_size": 128,
                                "num_experts_per_tok": 2, "head_dim": 32,
                                "layer_types": ["full_attention"] * 4}),
    "Olmoe": ("OlmoeConfig", {"num_experts": 8, "intermediate_size": 128,
                              "num_experts_per_tok": 2}),
}  # fmt: skip


def mixture(family: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config, own = MIXTURES[family]
    made = getattr(transformers, config)(**{**_SIZES, **own, **settings})
    model = getattr(transformers, f"{family}ForCausalLM")(made).eval()
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model


class Denoiser(torch.nn.Module):  # type: ignore[misc,name-defined]
    """As the networks of diffusion: every block is told the time step, and blocks on the way up get
    what those on the way down have computed."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = [width, 2 * width, 4 * width]
        self.time = torch.nn.Sequential(
            torch.nn.Linear(32, 128), torch.nn.SiLU(), torch.nn.Linear(128, 128)
        )
        self.first = torch.nn.Conv2d(3, width, 3, padding=1)
        self.down = torch.nn.ModuleList(
            _Denoising(one, other) for one, other in pairwise([width, *widths])
        )
        self.middle = _Denoising(widths[-1], widths[-1])
        self.up = torch.nn.ModuleList(
            _Denoising(2 * other, one) for one, other in reversed(list(pairwise([width, *widths])))
        )
        self.last = torch.nn.Conv2d(width, 3, 3, padding=1)
        self.eval()

    def forward(self, x: Any, step: int) -> Any:
        waves = step * torch.exp2(-torch.arange(16.0, device=x.device))
        told = self.time(torch.cat([waves.sin(), waves.cos()]))
        x, skipped = self.first(x), []
        for block in self.down:
            x = block(x, told)
            skipped.append(x)
            x = torch.nn.functional.avg_pool2d(x, 2)
        x = self.middle(x, told)
        for block in self.up:
            x = torch.nn.functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, skipped.pop()], dim=1), told)
        return self.last(x)


class _Denoising(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, width: int, to: int) -> None:
        super().__init__()
        self.one = torch.nn.Conv2d(width, to, 3, padding=1)
        self.told = torch.nn.Linear(128, to)
        self.two = torch.nn.Conv2d(to, to, 3, padding=1)

    def forward(self, x: Any, told: Any) -> Any:
        x = torch.nn.functional.silu(self.one(x)) + self.told(told)[:, None, None]
        return torch.nn.functional.silu(self.two(x))


def denoised(model: Any, noise: Any, steps: int = 6) -> Any:
    """What repeated calls leave of the noise."""
    for step in reversed(range(steps)):
        noise = noise - model(noise, step) / steps
    return noise


def enable_checkpointing(model: Any) -> None:
    """Activations are computed again in backward; transformers 5.23 has a new name for it."""
    name = "activation_checkpointing_enable"
    if not hasattr(model, name):
        name = "gradient_checkpointing_enable"
    getattr(model, name)({"use_reentrant": False})
