"""Groups of a PyTorch module; it may be on the meta device, without values."""

from __future__ import annotations

from typing import Any

from vramkit.weights.model import SMALL, Part, analyse
from vramkit.weights.planner.arithmetic import Arithmetic, Experts, Tensor, count
from vramkit.weights.planner.shape import ModelShape, aligned, make_shape


def shape_of_module(
    torch: Any,
    model: Any,
    source: str,
    *,
    experts: Experts | None = None,
    small: int = SMALL,
) -> ModelShape:
    """As offload() would group it. Raises UnsupportedModel, TypeError, ValueError."""
    parsed = analyse(torch, model, small=small, meta=True)
    arithmetic = [Arithmetic() for _ in parsed.groups]
    seen: set[int] = set()
    at = 0
    for part in parsed.parts:
        new = [group for group in part.groups if group not in seen]
        # A part that has only what another one has had (a head tied to the embedding) computes
        # where the pass has got to.
        at = new[-1] if new else max(seen)
        seen.update(new)
        arithmetic[at] = arithmetic[at].plus(_work(torch, part, experts))
    kept = aligned([weight.nbytes for weight in parsed.kept])
    return make_shape(source, parsed.groups, arithmetic, kept, experts)


def _work(torch: Any, part: Part, experts: Experts | None) -> Arithmetic:
    tensors = []
    for path, module in part.module.named_modules():
        looked_up = isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
        for key, tensor in module._parameters.items():
            if tensor is not None:
                name = ".".join(filter(None, (part.name, path, key)))
                nbytes = tensor.numel() * tensor.element_size()
                tensors.append(Tensor(name, tuple(tensor.shape), nbytes, looked_up))
    return count(tensors, experts=experts)
