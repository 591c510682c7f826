"""Decoder layers of the shape of Llama-70B, alone: what weight streaming is measured on."""

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


def inputs(tokens: int, hidden: int = HIDDEN, *, device: str = "cuda") -> dict[str, Any]:
    """Embeddings on the device: the layers alone are measured."""
    generator = torch.Generator(device).manual_seed(1)
    values = torch.randn((1, tokens, hidden), generator=generator, device=device)
    return {"inputs_embeds": values.to(torch.bfloat16), "use_cache": False}
