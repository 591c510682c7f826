"""Trains low-rank adapters over a frozen Llama, and evaluates without gradients in between."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torch_programs import llama
from torch_programs.llama import LlamaSizes
from torch_programs.program import Program, batches, learn


@dataclass(frozen=True)
class Sizes:
    llama: LlamaSizes
    rank: int
    steps: int
    items: int
    lengths: tuple[int, int]
    tokens: int
    evaluate_every: int
    evaluated: tuple[tuple[int, int], ...]
    """Items and length of each batch of an evaluation."""


SIZES = {
    "full": Sizes(
        LlamaSizes(16, 2048, 5632, 16, 8, 32_000),
        16,
        9,
        8,
        (96, 1536),
        3072,
        3,
        ((16, 384), (7, 1024), (3, 1900)),
    ),
    "tiny": Sizes(LlamaSizes(2, 32, 64, 4, 2, 100), 4, 4, 3, (4, 16), 48, 2, ((4, 5), (2, 17))),
}


class Adapted(nn.Module):
    """A frozen linear layer and a low-rank correction, kept in 32 bits."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        place = {"device": frozen.weight.device, "dtype": torch.float32}
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features, **place) * 0.01)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank, **place))

    def forward(self, x: Tensor) -> Tensor:
        correction = x.float() @ self.down.T @ self.up.T
        result: Tensor = self.frozen(x) + correction.to(x.dtype)
        return result


class Adapters(Program):
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(device)
        self.sizes = sizes
        self.model = llama.made(sizes.llama, device).requires_grad_(False)
        self.models = [self.model]
        for layer in self.model.layers:
            attention = layer.attention
            attention.queries = Adapted(attention.queries, sizes.rank)
            attention.values = Adapted(attention.values, sizes.rank)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-3)
        self.shapes = batches(self.random, sizes.steps, sizes.items, sizes.lengths, sizes.tokens)

    def round(self) -> Iterator[Tensor]:
        for step, (items, length) in enumerate(self.shapes, 1):
            tokens = self.integers(self.sizes.llama.vocabulary, items, length)
            yield learn(self.optimizer, llama.next_token_loss(self.model(tokens), tokens))
            if step % self.sizes.evaluate_every == 0:
                yield self.evaluate()

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """Mean log-likelihood, and how often the most likely token is the right one."""
        found = []
        for items, length in self.sizes.evaluated:
            tokens = self.integers(self.sizes.llama.vocabulary, items, length)
            likelihoods = self.model(tokens)[:, :-1].float().log_softmax(-1)
            right = tokens[:, 1:]
            found.append(likelihoods.gather(-1, right[..., None]).mean())
            found.append((likelihoods.argmax(-1) == right).float().mean())
        return torch.stack(found).sum()


def build(size: str, device: torch.device) -> Program:
    return Adapters(SIZES[size], device)
