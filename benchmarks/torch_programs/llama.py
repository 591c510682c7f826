"""A decoder in the manner of Llama: normalisation before, rotary positions, gated networks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Made = TypeVar("Made")


@dataclass(frozen=True)
class LlamaSizes:
    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    vocabulary: int

    @property
    def head(self) -> int:
        return self.width // self.heads


class RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.scale * wide.to(x.dtype)


def rotations(length: int, head: int, start: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions from start on: (length, head) each."""
    powers = torch.arange(0, head, 2, device=device, dtype=torch.float32) / head
    positions = torch.arange(start, start + length, device=device, dtype=torch.float32)
    angles = torch.outer(positions, 10_000.0**-powers)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = (part.to(x.dtype) for part in turn)
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Attention(nn.Module):
    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.sizes = sizes
        keys = sizes.key_heads * sizes.head
        self.queries = nn.Linear(sizes.width, sizes.width, bias=False)
        self.keys = nn.Linear(sizes.width, keys, bias=False)
        self.values = nn.Linear(sizes.width, keys, bias=False)
        self.output = nn.Linear(sizes.width, sizes.width, bias=False)

    def project(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, by heads, queries and keys turned by their positions."""
        split = (*x.shape[:2], -1, self.sizes.head)
        queries, keys, values = (
            linear(x).view(split).transpose(1, 2)
            for linear in (self.queries, self.keys, self.values)
        )
        return rotate(queries, turn), rotate(keys, turn), values

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool) -> Tensor:
        groups = self.sizes.heads // self.sizes.key_heads
        if groups > 1:
            keys, values = (part.repeat_interleave(groups, 1) for part in (keys, values))
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=causal)
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        result: Tensor = self.output(self.attend(*self.project(x, turn), causal=True))
        return result


class Network(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


class Layer(nn.Module):
    def __init__(self, sizes: LlamaSizes, network: nn.Module | None = None) -> None:
        super().__init__()
        self.before_attention = RootMeanSquare(sizes.width)
        self.attention = Attention(sizes)
        self.before_network = RootMeanSquare(sizes.width)
        self.network = network or Network(sizes.width, sizes.inner)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.before_attention(x), turn)
        result: Tensor = x + self.network(self.before_network(x))
        return result


class Llama(nn.Module):
    def __init__(
        self, sizes: LlamaSizes, *, checkpointed: bool = False, layers: list[Layer] | None = None
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.checkpointed = checkpointed
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(layers or [Layer(sizes) for _ in range(sizes.layers)])
        self.last = RootMeanSquare(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        turn = rotations(tokens.shape[1], self.sizes.head, 0, tokens.device)
        for layer in self.layers:
            if self.checkpointed:
                x = checkpoint(layer, x, turn, use_reentrant=False)
            else:
                x = layer(x, turn)
        result: Tensor = self.head(self.last(x))
        return result


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def made(sizes: LlamaSizes, device: torch.device, *, checkpointed: bool = False) -> Llama:
    """On the device, with weights of 16 bits."""
    with device:
        return half(lambda: Llama(sizes, checkpointed=checkpointed))


def half(make: Callable[[], Made]) -> Made:
    """What `make` returns, made of bfloat16 from the start instead of converted."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return make()
    finally:
        torch.set_default_dtype(before)
