"""Safetensors files without data: what a planner may read of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path


def write_header(path: Path, shapes: Mapping[str, tuple[int, ...]], element: int = 2) -> Path:
    """A header alone: who reads on finds the end of the file."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        end = at + prod(shape) * element
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return path


def llama_layers(
    layers: int, *, hidden: int = 8192, intermediate: int = 28672, keys: int = 1024
) -> dict[str, tuple[int, ...]]:
    """Decoder layers by default as those of Llama-70B, and no more than them."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.mlp.down_proj.weight": (hidden, intermediate),
            f"{at}.mlp.gate_proj.weight": (intermediate, hidden),
            f"{at}.mlp.up_proj.weight": (intermediate, hidden),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.self_attn.k_proj.weight": (keys, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, hidden),
            f"{at}.self_attn.q_proj.weight": (hidden, hidden),
            f"{at}.self_attn.v_proj.weight": (keys, hidden),
        }
    return shapes
