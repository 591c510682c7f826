"""Trains a U-Net to remove noise from latents of changing shape, and samples in between."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_programs.program import Program, learn

CHANNELS = 4
GROUPS = 4


@dataclass(frozen=True)
class Sizes:
    base: int
    factors: tuple[int, ...]
    words: int
    """Channels of the condition."""
    steps: int
    sides: tuple[int, int]
    """In steps of 8."""
    places: int
    """Of a batch: items x height x width."""
    sample_every: int
    sample_steps: int


SIZES = {
    "full": Sizes(256, (1, 2, 3), 768, 9, (32, 112), 80_000, 3, 4),
    "tiny": Sizes(8, (1, 2), 16, 3, (8, 16), 512, 2, 2),
}


class Residual(nn.Module):
    """Two convolutions around a shortcut; the time is added between them."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(GROUPS, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.time = nn.Linear(time, outputs)
        self.second = nn.Sequential(
            nn.GroupNorm(GROUPS, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(x) + self.time(time)[:, :, None, None]
        result: Tensor = self.second(hidden) + self.shortcut(x)
        return result


class Attention(nn.Module):
    """Of all places to each other, then to the words of the condition."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.normal = nn.GroupNorm(GROUPS, width)
        self.own = nn.Linear(width, 3 * width)
        self.queries = nn.Linear(width, width)
        self.keys_values = nn.Linear(words, 2 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        places = self.normal(x).flatten(2).transpose(1, 2)
        places = places + attend(*self.own(places).chunk(3, -1))
        places = places + attend(self.queries(places), *self.keys_values(words).chunk(2, -1))
        return x + self.output(places).transpose(1, 2).view_as(x)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    heads = max(1, queries.shape[-1] // 64)
    parts = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (queries, keys, values))
    return functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


class UNet(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        widths = [sizes.base * factor for factor in sizes.factors]
        time = 4 * sizes.base
        self.base = sizes.base
        self.time = nn.Sequential(nn.Linear(sizes.base, time), nn.SiLU(), nn.Linear(time, time))
        self.start = nn.Conv2d(CHANNELS, sizes.base, 3, padding=1)
        self.down, self.up, self.attention = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        inputs = sizes.base
        for level, width in enumerate(widths):
            stride = 2 if level + 1 < len(widths) else 1
            self.down.append(
                nn.ModuleList(
                    [
                        Residual(inputs, width, time),
                        Residual(width, width, time),
                        nn.Conv2d(width, width, 3, stride, 1),
                    ]
                )
            )
            self.attention.append(Attention(width, sizes.words) if level else nn.Identity())
            inputs = width
        for width in reversed(widths):
            self.up.append(
                nn.ModuleList([Residual(inputs + width, width, time), Residual(width, width, time)])
            )
            inputs = width
        self.end = nn.Sequential(
            nn.GroupNorm(GROUPS, inputs), nn.SiLU(), nn.Conv2d(inputs, CHANNELS, 3, padding=1)
        )

    def forward(self, x: Tensor, times: Tensor, words: Tensor) -> Tensor:
        steps = torch.arange(self.base // 2, device=x.device) / (self.base // 2)
        angles = times[:, None] * 10_000.0**-steps
        time = self.time(torch.cat((angles.sin(), angles.cos()), 1))
        x = self.start(x)
        kept = []
        for level, (first, second, smaller) in enumerate(self.down):
            x = second(first(x, time), time)
            if level:
                x = self.attention[level](x, words)
            kept.append(x)
            x = smaller(x)
        for first, second in self.up:
            beside = kept.pop()
            x = functional.interpolate(x, size=beside.shape[2:])
            x = second(first(torch.cat((x, beside), 1), time), time)
        result: Tensor = self.end(x)
        return result


class Diffusion(Program):
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(device)
        self.sizes = sizes
        with device:
            self.model = UNet(sizes)
        self.models = [self.model]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.shapes = [self.shape() for _ in range(sizes.steps)]

    def shape(self) -> tuple[int, int, int, int]:
        """Items, height, width, words."""
        height, width = (
            8 * self.random.randint(self.sizes.sides[0] // 8, self.sizes.sides[1] // 8)
            for _ in range(2)
        )
        items = max(1, self.sizes.places // (height * width))
        return items, height, width, self.random.randint(4, 77)

    def round(self) -> Iterator[Tensor]:
        for step, (items, height, width, count) in enumerate(self.shapes, 1):
            clean = self.normal(items, CHANNELS, height, width)
            noise = torch.randn_like(clean)
            times = torch.rand(items, device=self.device)
            share = times[:, None, None, None]
            words = self.normal(items, count, self.sizes.words)
            with self.mixed_precision():
                found = self.model(clean * (1 - share) + noise * share, 1000 * times, words)
            yield learn(self.optimizer, functional.mse_loss(found.float(), noise - clean))
            if step % self.sizes.sample_every == 0:
                yield self.sample(max(1, items // 4), width, height, count)

    @torch.no_grad()
    def sample(self, items: int, height: int, width: int, count: int) -> Tensor:
        """With guidance: each step runs a batch with the condition and one without."""
        x = self.normal(items, CHANNELS, height, width)
        words = self.normal(items, count, self.sizes.words)
        both = torch.cat((words, torch.zeros_like(words)))
        for step in range(self.sizes.sample_steps):
            times = torch.full((2 * items,), 1 - step / self.sizes.sample_steps, device=x.device)
            with self.mixed_precision():
                led, free = self.model(torch.cat((x, x)), 1000 * times, both).float().chunk(2)
            x = x - (free + 4 * (led - free)) / self.sizes.sample_steps
        return x.square().mean()


def build(size: str, device: torch.device) -> Program:
    return Diffusion(SIZES[size], device)
