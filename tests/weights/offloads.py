"""What the tests of offload() share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramkit import offload

from .models import torch

if TYPE_CHECKING:
    from vramkit.weights import Offload

MIB = 1 << 20


def small(model: Any, budget: Any = "4.2MiB", **settings: Any) -> Offload:
    """Small models have small groups: all of them are streamed, through a ring of 2 MiB."""
    return offload(model, budget, **{"keep_below": 4096, "ring": 2 * MIB, **settings})


def picture(model: Any) -> dict[str, Any]:
    """What undoing must restore."""
    parameters = {
        name: (tensor.clone(), tensor.stride(), tensor.requires_grad, tensor.device, id(tensor))
        for name, tensor in [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
    }
    hooks = [
        (len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()
    ]
    return {"parameters": parameters, "hooks": hooks}


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["hooks"] == after["hooks"]
    assert before["parameters"].keys() == after["parameters"].keys()
    for name, (tensor, *rest) in before["parameters"].items():
        assert torch.equal(tensor, after["parameters"][name][0]), name
        assert rest == list(after["parameters"][name][1:]), name
