"""Trains a segmentation model on crops of changing size: dilated features, pooled at many rates."""

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
    width: int
    classes: int
    steps: int
    sides: tuple[int, int]
    """Shortest and longest side of a crop; both are multiples of 32."""
    pixels: int
    """Of a batch."""


SIZES = {
    "full": Sizes(64, (3, 4, 6, 3), 256, 21, 10, (256, 768), 16 * 512 * 512),
    "tiny": Sizes(4, (1, 1, 1, 1), 8, 5, 3, (64, 96), 2 * 96 * 96),
}


class Pyramid(nn.Module):
    """The same features seen with several dilations, and as a whole."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [resnet.convolution(inputs, width)]
            + [resnet.convolution(inputs, width, 3, 1, rate) for rate in (6, 12, 18)]
        )
        self.whole = nn.Conv2d(inputs, width, 1)
        self.joined = resnet.convolution(5 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        seen = [functional.relu(branch(x)) for branch in self.branches]
        seen.append(self.whole(x.mean((2, 3), keepdim=True)).expand_as(seen[0]))
        return functional.relu(self.joined(torch.cat(seen, 1)))


class Segmenter(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.features = resnet.ResNet(sizes.base, sizes.blocks, (1, 2, 2, 1), (1, 1, 1, 2))
        self.pyramid = Pyramid(self.features.outputs, sizes.width)
        self.early = resnet.convolution(4 * sizes.base, sizes.width // 4)
        self.mixed = resnet.convolution(sizes.width + sizes.width // 4, sizes.width, 3)
        self.head = nn.Conv2d(sizes.width, sizes.classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        stages = self.features(images)
        early = functional.relu(self.early(stages[0]))
        late = functional.interpolate(self.pyramid(stages[-1]), size=early.shape[2:])
        mixed = functional.relu(self.mixed(torch.cat((late, early), 1)))
        return functional.interpolate(self.head(mixed), size=images.shape[2:])


class Segmentation(Program):
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(device)
        self.sizes = sizes
        with device:
            self.model = Segmenter(sizes).to(memory_format=torch.channels_last)
        self.models = [self.model]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.shapes = []
        for _ in range(sizes.steps):
            height, width = (
                32 * self.random.randint(sizes.sides[0] // 32, sizes.sides[1] // 32)
                for _ in range(2)
            )
            most = max(2, sizes.pixels // (height * width))
            self.shapes.append((self.random.randint(max(2, most // 2), most), height, width))

    def round(self) -> Iterator[Tensor]:
        for items, height, width in self.shapes:
            with self.mixed_precision():
                logits = self.model(resnet.images(items, height, width, self.device))
            wanted = self.integers(self.sizes.classes, items * height * width)
            flat = logits.permute(0, 2, 3, 1).reshape(-1, self.sizes.classes)
            yield learn(self.optimizer, functional.cross_entropy(flat.float(), wanted))


def build(size: str, device: torch.device) -> Program:
    return Segmentation(SIZES[size], device)
