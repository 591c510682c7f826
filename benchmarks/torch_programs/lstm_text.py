"""Trains an LSTM to predict the next word of texts whose lengths differ widely."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from torch_programs.program import Program, learn


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    vocabulary: int
    steps: int
    items: tuple[int, int]
    lengths: tuple[int, int]


SIZES = {
    "full": Sizes(2, 1024, 16_000, 8, (16, 96), (10, 400)),
    "tiny": Sizes(1, 16, 50, 3, (2, 4), (3, 12)),
}


class Reader(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.lstm = nn.LSTM(sizes.width, sizes.width, sizes.layers, batch_first=True)
        self.head = nn.Linear(sizes.width, sizes.vocabulary)

    def forward(self, words: Tensor, lengths: list[int]) -> Tensor:
        """Scores for the word behind each word of each text; nothing for the padding."""
        packed = pack_padded_sequence(self.embedding(words), torch.tensor(lengths), True)
        found: PackedSequence = self.lstm(packed)[0]
        result: Tensor = self.head(found.data)
        return result


class LstmText(Program):
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(device)
        self.sizes = sizes
        with device:
            self.model = Reader(sizes)
        self.models = [self.model]
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.steps = [self.lengths(step) for step in range(sizes.steps)]

    def lengths(self, step: int) -> list[int]:
        """Of the texts of one batch, the longest first."""
        items = self.random.randint(*self.sizes.items)
        longest = self.random.randint(*self.sizes.lengths)
        if step == self.sizes.steps // 2:
            items, longest = self.sizes.items[1], self.sizes.lengths[1]
        shortest = max(2, longest // 4)
        return sorted((self.random.randint(shortest, longest) for _ in range(items)), reverse=True)

    def round(self) -> Iterator[Tensor]:
        for lengths in self.steps:
            words = self.integers(self.sizes.vocabulary, len(lengths), lengths[0] + 1)
            logits = self.model(words[:, :-1], lengths)
            wanted = pack_padded_sequence(words[:, 1:], torch.tensor(lengths), True).data
            yield learn(self.optimizer, functional.cross_entropy(logits, wanted))


def build(size: str, device: torch.device) -> Program:
    return LstmText(SIZES[size], device)
