"""What every program has, and what several of them share.

A program is built once. A round of it is a fixed sequence of steps of different shapes, the same in
every round and in every process: figures of rounds and of allocators can be compared. Random
numbers come from seeds, sizes from Python's generator, so that no size depends on the device.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from random import Random

import torch
from torch import Tensor, nn


class Program(ABC):
    """Models are made on the device itself: their memory is part of what is measured."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.random = Random(17)
        self.models: list[nn.Module] = []
        torch.manual_seed(7)

    @abstractmethod
    def round(self) -> Iterator[Tensor]:
        """One round; after each step a figure of its result, a tensor without dimensions."""

    def checksums(self) -> Iterator[int]:
        """Of all weights, bit by bit."""
        for model in self.models:
            for parameter in model.parameters():
                data = parameter.detach().contiguous()
                bits = data.view(torch.int16 if data.element_size() == 2 else torch.int32)
                yield int(bits.sum(dtype=torch.int64))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device)

    def integers(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, device=self.device)

    def mixed_precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


def learn(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """The second half of a training step."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach().float()


def batches(
    random: Random, count: int, most_items: int, lengths: tuple[int, int], most_tokens: int
) -> list[tuple[int, int]]:
    """Items and length of each batch; items x length stays within most_tokens."""
    chosen = []
    for _ in range(count):
        length = random.randint(*lengths)
        chosen.append((random.randint(1, max(1, min(most_items, most_tokens // length))), length))
    # One batch is as large as allowed, so that the peak does not hang on the dice.
    longest = lengths[1]
    chosen[count // 2] = (max(1, min(most_items, most_tokens // longest)), longest)
    return chosen
