"""Decoder layers alone: those of Llama-70B, and a mixture of experts in every other layer."""

from typing import Any

import torch
import transformers

LAYERS = 12
HIDDEN = 8192
TOKENS = {"one token": 1, "prefill 4096": 4096, "prefill 16384": 16384}
MIB = 1 << 20


def build(hidden: int = HIDDEN, *, device: str = "cuda", layers: int = LAYERS) -> Any:
    """In host memory, bf16, with random values that were made on the device, which is faster."""
    return _with_values(llama(hidden, layers), device)


def llama(hidden: int = HIDDEN, layers: int = LAYERS) -> Any:
    return transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(1, hidden // 1024),
        vocab_size=32,
        max_position_embeddings=32768,
        attn_implementation="sdpa",
    )


def budgets(nbytes: int) -> tuple[int, dict[str, int]]:
    """The ring of two layers, and budgets of the card with which the model is streamed."""
    layer = nbytes // LAYERS
    ring = 2 * layer + 8 * MIB
    found = {"ring of 2 layers": ring}
    found |= {f"{n} layers streamed": ring + (LAYERS - n) * layer + 8 * MIB for n in (11, 7, 5)}
    found["budget of half the model"] = nbytes // 2
    return ring, found


def empty(config: Any) -> Any:
    """Without memory."""
    with torch.device("meta"):
        return transformers.AutoModel.from_config(config, dtype=torch.bfloat16)


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
    return _with_values(config, device)


def _with_values(config: Any, device: str) -> Any:
    model = empty(config)
    rotary = type(model.rotary_emb)(config)  # its buffers are computed, not loaded
    model.to_empty(device="cpu")
    model.rotary_emb = rotary
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1)
            else:
                values = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                parameter.copy_(values.normal_(0, 0.02, generator=generator))
    return model.eval().requires_grad_(False)


def inputs(
    tokens: int, hidden: int = HIDDEN, *, device: str = "cuda", seed: int = 1
) -> dict[str, Any]:
    """Embeddings on the device: the layers alone are measured."""
    generator = torch.Generator(device).manual_seed(seed)
    values = torch.randn((1, tokens, hidden), generator=generator, device=device)
    return {"inputs_embeds": values.to(torch.bfloat16), "use_cache": False}
