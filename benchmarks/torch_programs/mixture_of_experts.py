"""Trains a decoder whose networks are mixtures of experts: each gets as many tokens as come."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torch_programs import llama
from torch_programs.llama import Layer, Llama, LlamaSizes, Network
from torch_programs.program import Program, batches, learn


@dataclass(frozen=True)
class Sizes:
    llama: LlamaSizes
    experts: int
    chosen: int
    steps: int
    items: int
    lengths: tuple[int, int]
    tokens: int


SIZES = {
    "full": Sizes(LlamaSizes(6, 1024, 2048, 16, 4, 16_000), 16, 2, 10, 16, (64, 1500), 12_000),
    "tiny": Sizes(LlamaSizes(2, 32, 32, 4, 2, 100), 4, 2, 3, 3, (4, 16), 48),
}


class Experts(nn.Module):
    """Each token goes to the experts with the highest scores, and their outputs are weighed."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.chosen = sizes.chosen
        self.router = nn.Linear(sizes.llama.width, sizes.experts, bias=False)
        self.experts = nn.ModuleList(
            Network(sizes.llama.width, sizes.llama.inner) for _ in range(sizes.experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).float().softmax(-1)
        weights, experts = scores.topk(self.chosen, dim=-1)
        order = experts.flatten().argsort(stable=True)
        counts = torch.bincount(experts.flatten(), minlength=len(self.experts)).tolist()
        parts = tokens[order // self.chosen].split(counts)
        outputs = [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device=order.device)
        mixed = torch.cat(outputs)[back].view(-1, self.chosen, x.shape[-1])
        return (mixed * weights[..., None].to(x.dtype)).sum(1).view_as(x)


class MixtureOfExperts(Program):
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(device)
        self.sizes = sizes
        with device:
            self.model = llama.half(self.make)
        self.models = [self.model]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.shapes = batches(self.random, sizes.steps, sizes.items, sizes.lengths, sizes.tokens)

    def make(self) -> Llama:
        sizes = self.sizes.llama
        layers = [Layer(sizes, Experts(self.sizes)) for _ in range(sizes.layers)]
        return Llama(sizes, layers=layers)

    def round(self) -> Iterator[Tensor]:
        for items, length in self.shapes:
            tokens = self.integers(self.sizes.llama.vocabulary, items, length)
            yield learn(self.optimizer, llama.next_token_loss(self.model(tokens), tokens))


def build(size: str, device: torch.device) -> Program:
    return MixtureOfExperts(SIZES[size], device)
