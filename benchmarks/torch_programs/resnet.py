"""Residual networks for images, in channels-last layout."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional


def convolution(
    inputs: int, outputs: int, side: int = 1, stride: int = 1, dilation: int = 1
) -> nn.Sequential:
    """With normalisation over the batch."""
    padding = dilation * (side // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, side, stride, padding, dilation, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """Narrow, 3 x 3, wide again, around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, dilation: int) -> None:
        super().__init__()
        inner = outputs // 4
        self.narrow = convolution(inputs, inner)
        self.middle = convolution(inner, inner, 3, stride, dilation)
        self.wide = convolution(inner, outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.middle(functional.relu(self.narrow(x))))
        return functional.relu(self.wide(inner) + self.shortcut(x))


class ResNet(nn.Module):
    """The features of every stage, at 1/4, 1/8, ... of the image, or as the strides say."""

    def __init__(
        self, base: int, blocks: Iterable[int], strides: Iterable[int], dilations: Iterable[int]
    ) -> None:
        super().__init__()
        self.stem = convolution(3, base, 7, 2)
        stages = []
        inputs, outputs = base, 4 * base
        for count, stride, dilation in zip(blocks, strides, dilations, strict=True):
            stage = []
            for block in range(count):
                stage.append(Bottleneck(inputs, outputs, 1 if block else stride, dilation))
                inputs = outputs
            stages.append(nn.Sequential(*stage))
            outputs *= 2
        self.stages = nn.ModuleList(stages)
        self.outputs = inputs

    def forward(self, images: Tensor) -> list[Tensor]:
        # Pooled by the mean: the gradient of a maximum has no order of its own on a card.
        x = functional.avg_pool2d(functional.relu(self.stem(images)), 3, 2, 1)
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found


def images(items: int, height: int, width: int, device: torch.device) -> Tensor:
    return torch.randn(items, 3, height, width, device=device).contiguous(
        memory_format=torch.channels_last
    )
