"""Trains a Llama of 0.4 billion parameters on batches of changing length."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_programs import llama
from torch_programs.llama import LlamaSizes
from torch_programs.program import Program, batches, learn


@dataclass(frozen=True)
class Sizes:
    llama: LlamaSizes
    steps: int
    items: int
    lengths: tuple[int, int]
    tokens: int
    checkpointed: bool = False


SIZES = {
    "full": Sizes(LlamaSizes(12, 1536, 4096, 12, 4, 32_000), 20, 8, (128, 2048), 4096),
    "tiny": Sizes(LlamaSizes(2, 32, 64, 4, 2, 100), 3, 3, (4, 16), 48),
}


class LlamaTraining(Program):
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(device)
        self.sizes = sizes
        self.model = llama.made(sizes.llama, device, checkpointed=sizes.checkpointed)
        self.models = [self.model]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.shapes = batches(self.random, sizes.steps, sizes.items, sizes.lengths, sizes.tokens)

    def round(self) -> Iterator[Tensor]:
        for items, length in self.shapes:
            tokens = self.integers(self.sizes.llama.vocabulary, items, length)
            yield learn(self.optimizer, llama.next_token_loss(self.model(tokens), tokens))


def build(size: str, device: torch.device) -> Program:
    return LlamaTraining(SIZES[size], device)
