"""Trains a ResNet-50 on images of changing size."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_programs import resnet
from torch_programs.program import Program, learn


@dataclass(frozen=True)
class Sizes:
    base: int
    blocks: tuple[int, ...]
    classes: int
    steps: int
    sides: tuple[int, ...]
    pixels: int
    """Of a batch."""


SIZES = {
    "full": Sizes(64, (3, 4, 6, 3), 1000, 12, tuple(range(160, 321, 32)), 128 * 224 * 224),
    "tiny": Sizes(4, (1, 1), 10, 3, (32, 64), 2 * 64 * 64),
}


class Classifier(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        count = len(sizes.blocks)
        self.features = resnet.ResNet(
            sizes.base, sizes.blocks, (1, *(2,) * (count - 1)), (1,) * count
        )
        self.head = nn.Linear(self.features.outputs, sizes.classes)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.head(self.features(images)[-1].mean((2, 3)))
        return result


class ImageClassification(Program):
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(device)
        self.sizes = sizes
        with device:
            self.model = Classifier(sizes).to(memory_format=torch.channels_last)
        self.models = [self.model]
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4
        )
        self.sides = [self.random.choice(sizes.sides) for _ in range(sizes.steps)]

    def round(self) -> Iterator[Tensor]:
        for side in self.sides:
            items = max(2, self.sizes.pixels // side**2)
            images = resnet.images(items, side, side, self.device)
            with self.mixed_precision():
                logits = self.model(images)
            wanted = self.integers(self.sizes.classes, items)
            yield learn(self.optimizer, functional.cross_entropy(logits.float(), wanted))


def build(size: str, device: torch.device) -> Program:
    return ImageClassification(SIZES[size], device)
