"""Trains a translation model: batches of sentences, padded to the longest of each side."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_programs.program import Program, learn


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    heads: int
    vocabulary: int
    steps: int
    lengths: tuple[int, int]
    tokens: int
    """Of a batch, padding included, on the longer side."""


SIZES = {
    "full": Sizes(6, 768, 12, 24_000, 14, (8, 320), 6144),
    "tiny": Sizes(1, 32, 4, 100, 3, (4, 16), 64),
}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.normal = nn.LayerNorm(width)
        self.queries = nn.Linear(width, width)
        self.keys_values = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor | None, mask: Tensor) -> Tensor:
        """Around a shortcut; x attends to the source, or to itself where there is none."""
        normal = self.normal(x)
        source = normal if source is None else source
        queries = self.queries(normal)
        keys, values = self.keys_values(source).chunk(2, -1)
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (queries, keys, values)
        )
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        result: Tensor = x + self.output(mixed.transpose(1, 2).flatten(2))
        return result


class Layer(nn.Module):
    def __init__(self, sizes: Sizes, *, crossed: bool) -> None:
        super().__init__()
        self.own = Attention(sizes.width, sizes.heads)
        self.crossed = Attention(sizes.width, sizes.heads) if crossed else None
        self.network = nn.Sequential(
            nn.LayerNorm(sizes.width),
            nn.Linear(sizes.width, 4 * sizes.width),
            nn.GELU(),
            nn.Linear(4 * sizes.width, sizes.width),
            nn.Dropout(0.1),
        )

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        x = self.own(x, None, mask)
        if self.crossed is not None and source_mask is not None:
            x = self.crossed(x, source, source_mask)
        result: Tensor = x + self.network(x)
        return result


class Translator(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.lengths[1], sizes.width)
        self.encoder = nn.ModuleList(Layer(sizes, crossed=False) for _ in range(sizes.layers))
        self.decoder = nn.ModuleList(Layer(sizes, crossed=True) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.width, sizes.vocabulary)

    def embed(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        result: Tensor = self.embedding(tokens) + self.positions(places)
        return result

    def forward(self, source: Tensor, source_real: Tensor, target: Tensor) -> Tensor:
        source_mask = source_real[:, None, None, :]
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x, source_mask)
        length = target.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        y = self.embed(target)
        for layer in self.decoder:
            y = layer(y, earlier[None, None], x, source_mask)
        result: Tensor = self.head(y)
        return result


class EncoderDecoder(Program):
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(device)
        self.sizes = sizes
        with device:
            self.model = Translator(sizes)
        self.models = [self.model]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.steps = [self.lengths(step) for step in range(sizes.steps)]

    def lengths(self, step: int) -> list[tuple[int, int]]:
        """Of the sentences of one batch, source and target, which are about as long."""
        shortest, longest = self.sizes.lengths
        about = longest if step == self.sizes.steps // 2 else self.random.randint(shortest, longest)
        chosen = []
        for _ in range(max(1, self.sizes.tokens // about)):
            source = self.random.randint(max(shortest, about * 2 // 3), about)
            target = int(source * self.random.uniform(0.6, 1.3))
            chosen.append((source, max(shortest, min(longest, target))))
        return chosen

    def padded(self, lengths: list[int]) -> tuple[Tensor, Tensor]:
        """Tokens, and which of them are real."""
        real = torch.tensor(lengths, device=self.device)
        tokens = self.integers(self.sizes.vocabulary, len(lengths), max(lengths))
        mask = torch.arange(max(lengths), device=self.device) < real[:, None]
        return tokens.masked_fill(~mask, 0), mask

    def round(self) -> Iterator[Tensor]:
        for pairs in self.steps:
            source, source_real = self.padded([pair[0] for pair in pairs])
            target, target_real = self.padded([pair[1] for pair in pairs])
            with self.mixed_precision():
                logits = self.model(source, source_real, target[:, :-1])
            wanted = target[:, 1:].masked_fill(~target_real[:, 1:], -100)
            loss = functional.cross_entropy(
                logits.flatten(0, 1).float(), wanted.flatten(), label_smoothing=0.1
            )
            yield learn(self.optimizer, loss)


def build(size: str, device: torch.device) -> Program:
    return EncoderDecoder(SIZES[size], device)
