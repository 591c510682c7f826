"""Adapters as peft puts them into a model; it is not needed for that."""

from __future__ import annotations

from typing import Any

from .models import torch


class Adapted(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A layer that became a child, beside two new factors. Without a device they are where its
    weight is."""

    def __init__(self, layer: Any, device: Any) -> None:
        super().__init__()
        device = layer.weight.device if device is None else device
        self.base_layer = layer
        self.lora_A = torch.nn.Linear(layer.in_features, 4, bias=False, device=device)
        self.lora_B = torch.nn.Linear(4, layer.out_features, bias=False, device=device)

    def forward(self, x: Any) -> Any:
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def adapt(model: Any, device: Any = None) -> None:
    torch.manual_seed(1)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj, device)


def remove(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.q_proj = layer.self_attn.q_proj.base_layer
