"""Decoder layers alone, of Llama's shape, with random weights: nothing is downloaded."""

from __future__ import annotations

from typing import Any

from vramkit.integrations._frameworks import imported


def llama(hidden: int, layers: int) -> Any:
    """Llama-70B's with a hidden size of 8192."""
    return _transformers().LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(1, hidden // 1024),
        vocab_size=32,
        max_position_embeddings=32768,
        attn_implementation="sdpa",
    )


def empty(config: Any) -> Any:
    """Without memory."""
    torch = _torch()
    with torch.device("meta"):
        return _transformers().AutoModel.from_config(config, dtype=torch.bfloat16)


def with_values(config: Any, device: str) -> Any:
    """In host memory, bf16, with random values that were made on the device, which is faster."""
    torch = _torch()
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


def inputs(tokens: int, hidden: int, device: str, seed: int = 1) -> dict[str, Any]:
    """Embeddings on the device: the layers alone are measured."""
    torch = _torch()
    generator = torch.Generator(device).manual_seed(seed)
    values = torch.randn((1, tokens, hidden), generator=generator, device=device)
    return {"inputs_embeds": values.to(torch.bfloat16), "use_cache": False}


def _torch() -> Any:
    return imported("torch", "torch")


def _transformers() -> Any:
    return imported("transformers", "transformers")
