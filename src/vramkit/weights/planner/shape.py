"""A model as the planner sees it: groups with what they compute, no values."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from vramkit.weights.layout import ALIGNMENT, Group
from vramkit.weights.planner.arithmetic import Arithmetic, Experts
from vramkit.weights.safetensors import ModelError as ModelError

NO_EXPERTS = (
    "how many of its experts a token uses is not known, without a config: all of them count"
)


class ModelShape(msgspec.Struct, frozen=True):
    """`source` says where it was read. `kept_bytes` are of small weights, which stay on the card.
    `arithmetic` is empty where the compute times are given. `notes` say what was not known."""

    source: str
    groups: tuple[Group, ...]
    arithmetic: tuple[Arithmetic, ...] = ()
    kept_bytes: int = 0
    notes: tuple[str, ...] = ()


def make_shape(
    source: str,
    groups: Sequence[Group],
    arithmetic: Sequence[Arithmetic],
    kept_bytes: int,
    experts: Experts | None,
) -> ModelShape:
    routed = any(work.expert_weights for work in arithmetic)
    notes = (NO_EXPERTS,) if routed and experts is None else ()
    return ModelShape(source, tuple(groups), tuple(arithmetic), kept_bytes, notes)


def aligned(sizes: Sequence[int]) -> int:
    """The bytes of tensors behind each other, each aligned as PyTorch aligns them."""
    return sum(-(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in sizes)
