"""The models of weight_streaming.py: the lab's decoder, and a mixture of experts."""

from typing import Any

import transformers

from vramkit.lab.weights import models
from vramkit.lab.weights.models import empty as empty

LAYERS = 12
HIDDEN = 8192
TOKENS = {"one token": 1, "prefill 4096": 4096, "prefill 16384": 16384}
MIB = 1 << 20


def build(hidden: int = HIDDEN, *, device: str = "cuda", layers: int = LAYERS) -> Any:
    return models.with_values(llama(hidden, layers), device)


def llama(hidden: int = HIDDEN, layers: int = LAYERS) -> Any:
    return models.llama(hidden, layers)


def budgets(nbytes: int) -> tuple[int, dict[str, int]]:
    """The ring of two layers, and budgets of the card with which the model is streamed."""
    layer = nbytes // LAYERS
    ring = 2 * layer + 8 * MIB
    found = {"ring of 2 layers": ring}
    found |= {f"{n} layers streamed": ring + (LAYERS - n) * layer + 8 * MIB for n in (11, 7, 5)}
    found["budget of half the model"] = nbytes // 2
    return ring, found


def build_mixture(hidden: int = HIDDEN // 2, *, device: str = "cuda", layers: int = 8) -> Any:
    """Layers of very unequal size: 0.42 GiB, and 2.7 with 16 experts, of which a token uses 2."""
    config = transformers.Qwen3MoeConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        moe_intermediate_size=hidden * 7 // 4,
        num_experts=16,
        num_experts_per_tok=2,
        decoder_sparse_step=2,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(1, hidden // 512),
        head_dim=128,
        vocab_size=32,
        max_position_embeddings=32768,
        attn_implementation="sdpa",
    )
    return models.with_values(config, device)


def inputs(
    tokens: int, hidden: int = HIDDEN, *, device: str = "cuda", seed: int = 1
) -> dict[str, Any]:
    return models.inputs(tokens, hidden, device, seed)
