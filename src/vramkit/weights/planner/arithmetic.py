"""What a group of weights computes, counted from its tensors, and how long that takes on a card."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

import msgspec

_ROUTED = re.compile(r"(^|\.)experts\.")
_OUTPUT = re.compile(r"(^|\.)(o_proj|out_proj|c_proj|dense|wo|o|out|to_out\.0|proj)\.weight$")
"""Projections behind the attention: their input is as wide as all its heads."""


class Tensor(NamedTuple):
    """A weight, by its shape. `looked_up`: an embedding, of which a token reads one row."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    looked_up: bool = False

    @property
    def is_matrix(self) -> bool:
        """Whether tokens are multiplied with it; of vectors the arithmetic does not count."""
        return len(self.shape) > 1 and not self.looked_up


class Experts(NamedTuple):
    """Of each layer, and how many of them a token is sent to."""

    number: int
    per_token: int


class Arithmetic(msgspec.Struct, frozen=True):
    """Weights that every token is multiplied with; weights of experts, with the share of them that
    a token uses; the width of all heads of an attention."""

    weights: int = 0
    nbytes: int = 0
    expert_weights: int = 0
    expert_bytes: int = 0
    expert_share: float = 1.0
    attention_width: int = 0

    def plus(self, other: Arithmetic) -> Arithmetic:
        return Arithmetic(
            weights=self.weights + other.weights,
            nbytes=self.nbytes + other.nbytes,
            expert_weights=self.expert_weights + other.expert_weights,
            expert_bytes=self.expert_bytes + other.expert_bytes,
            expert_share=min(self.expert_share, other.expert_share),
            attention_width=self.attention_width + other.attention_width,
        )


class Rates(msgspec.Struct, frozen=True):
    """The [compute] part of a profile (docs/profiles.md)."""

    matmul_flops_per_s: float
    attention_flops_per_s: float
    weights_bytes_per_s: float


def count(tensors: Iterable[Tensor], *, experts: Experts | None) -> Arithmetic:
    """Of a group, by the whole names of its tensors."""
    matrices = [tensor for tensor in tensors if tensor.is_matrix]
    routed = [tensor for tensor in matrices if _ROUTED.search(tensor.name)]
    dense = [tensor for tensor in matrices if not _ROUTED.search(tensor.name)]
    return Arithmetic(
        weights=sum(prod(tensor.shape) for tensor in dense),
        nbytes=sum(tensor.nbytes for tensor in dense),
        expert_weights=sum(prod(tensor.shape) for tensor in routed),
        expert_bytes=sum(tensor.nbytes for tensor in routed),
        expert_share=experts.per_token / experts.number if experts and routed else 1.0,
        attention_width=_attention_width(dense),
    )


def _attention_width(matrices: list[Tensor]) -> int:
    """Of all that attend, where a layer is one group and has several."""
    inside = [tensor for tensor in matrices if "att" in tensor.name.rpartition(".")[0].lower()]
    widths = [tensor.shape[1] for tensor in inside if _OUTPUT.search(tensor.name)]
    if widths:
        return sum(widths)
    # The output projection under another name: no wider than the fused one before it.
    return min((max(tensor.shape) for tensor in inside), default=0)


def seconds(work: Arithmetic, rates: Rates, tokens: int, batch: int) -> float:
    """Matrix products by the roofline, the attention of `tokens` tokens to themselves and those
    before them on top."""
    rows = tokens * batch
    flops = 2 * rows * (work.weights + work.expert_weights * work.expert_share)
    # A few tokens use a few experts; many use all of them.
    read = work.nbytes + work.expert_bytes * min(1.0, rows * work.expert_share)
    pairs = batch * tokens * (tokens + 1) / 2
    return (
        max(flops / rates.matmul_flops_per_s, read / rates.weights_bytes_per_s)
        + 4 * work.attention_width * pairs / rates.attention_flops_per_s
    )
