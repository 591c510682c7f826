"""Decoder layers alone: those of Llama-70B, and a mixture of experts in every other layer."""

from typing import Any

import torch
import transformers

LAYERS = 12
HIDDEN = 8192


def build(hidden: int = HIDDEN, *, device: str = "cuda", layers: int = LAYERS) -> Any:
    """In host memory, bf16, with random values that were made on the device, which is faster."""
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(1, hidden // 1024),
        vocab_size=32,
        max_position_embeddings=32768,
        attn_implementation="sdpa",
    )
    return _with_values(config, device)


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
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config, dtype=torch.bfloat16)
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
