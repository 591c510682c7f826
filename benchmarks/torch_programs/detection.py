"""Trains a two-stage detector: images of many sizes, each with another number of boxes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_programs import boxes, resnet
from torch_programs.program import Program, learn

ANCHOR_SIDES = (2.0, 4.0, 6.0)
REGION = 7
"""Places of a side at which the features of a proposal are read."""


@dataclass(frozen=True)
class Sizes:
    base: int
    blocks: tuple[int, ...]
    width: int
    classes: int
    steps: int
    items: int
    sides: tuple[int, int]
    """Shortest and longest side of an image; both are multiples of 32."""
    boxes: tuple[int, int]
    proposals: int
    kept: int


SIZES = {
    "full": Sizes(64, (2, 2, 3, 2), 192, 81, 7, 6, (480, 1088), (5, 300), 1500, 400),
    "tiny": Sizes(4, (1, 1, 1, 1), 8, 5, 3, 2, (64, 128), (2, 6), 30, 10),
}


class Detector(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.features = resnet.ResNet(sizes.base, sizes.blocks, (1, 2, 2, 2), (1, 1, 1, 1))
        inputs = [8 * sizes.base, 16 * sizes.base, 32 * sizes.base]
        self.lateral = nn.ModuleList(nn.Conv2d(channels, sizes.width, 1) for channels in inputs)
        self.shared = nn.Conv2d(sizes.width, sizes.width, 3, padding=1)
        self.scores = nn.Conv2d(sizes.width, len(ANCHOR_SIDES), 1)
        self.moves = nn.Conv2d(sizes.width, 4 * len(ANCHOR_SIDES), 1)
        self.head = nn.Sequential(
            nn.Linear(sizes.width * REGION**2, 1024),
            nn.ReLU(),
            nn.Linear(1024, sizes.classes),
        )

    def levels(self, images: Tensor) -> list[Tensor]:
        """Features at 1/8, 1/16 and 1/32 of the image; coarse ones are added to finer ones."""
        found = [
            lateral(stage)
            for lateral, stage in zip(self.lateral, self.features(images)[1:], strict=True)
        ]
        for fine in range(len(found) - 2, -1, -1):
            coarse = functional.interpolate(found[fine + 1], size=found[fine].shape[2:])
            found[fine] = found[fine] + coarse
        return found

    def propose(self, levels: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Scores and moves of every anchor of every image, and the anchors."""
        scores, moves, anchors = [], [], []
        for level, features in enumerate(levels):
            hidden = functional.relu(self.shared(features))
            scores.append(self.scores(hidden).permute(0, 2, 3, 1).flatten(1).float())
            moves.append(self.moves(hidden).permute(0, 2, 3, 1).reshape(len(hidden), -1, 4).float())
            anchors.append(boxes.anchors(*features.shape[2:], 8 << level, ANCHOR_SIDES, scores[0]))
        return torch.cat(scores, 1), torch.cat(moves, 1), torch.cat(anchors)

    def classify(self, features: Tensor, regions: Tensor) -> Tensor:
        """Class scores of regions of one image, from the finest features: (channels, y, x)."""
        places = (torch.arange(REGION, device=regions.device) + 0.5) / REGION
        corners, far = regions[:, :2] / 8, regions[:, 2:] / 8
        points = corners[:, None] + (far - corners)[:, None] * places[None, :, None]
        across = points[..., 0].long().clamp(0, features.shape[2] - 1)
        down = points[..., 1].long().clamp(0, features.shape[1] - 1)
        read = features[:, down[:, :, None], across[:, None, :]]
        result: Tensor = self.head(read.transpose(0, 1).flatten(1)).float()
        return result


class Detection(Program):
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(device)
        self.sizes = sizes
        with device:
            self.model = Detector(sizes).to(memory_format=torch.channels_last)
        self.models = [self.model]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.shapes = []
        for _ in range(sizes.steps):
            height, width = (
                32 * self.random.randint(sizes.sides[0] // 32, sizes.sides[1] // 32)
                for _ in range(2)
            )
            counts = [
                self.random.randint(*sizes.boxes)
                for _ in range(self.random.randint(2, sizes.items))
            ]
            self.shapes.append((height, width, counts))
        counts = [self.random.randint(*sizes.boxes) for _ in range(sizes.items)]
        self.shapes[sizes.steps // 2] = (sizes.sides[1], sizes.sides[1], counts)

    def targets(self, count: int, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Boxes and their classes; class 0 is the background."""
        extent = torch.tensor([width, height], device=self.device)
        corners = torch.rand(count, 2, device=self.device) * (extent - 32)
        sides = 16 + torch.rand(count, 2, device=self.device) * extent / 4
        found = torch.cat((corners, torch.minimum(corners + sides, extent)), 1)
        return found, 1 + self.integers(self.sizes.classes - 1, count)

    def image_loss(
        self, features: Tensor, scores: Tensor, moves: Tensor, anchors: Tensor, count: int,
        extent: tuple[int, int],
    ) -> Tensor:  # fmt: skip
        """Of one image: of its anchors, and of the proposals that survive."""
        wanted, classes = self.targets(count, *extent)
        best, which = boxes.overlap(anchors, wanted).max(1)
        positive = best > 0.4
        decided = positive | (best < 0.3)
        loss = functional.binary_cross_entropy_with_logits(
            scores[decided], positive[decided].float()
        )
        aims = boxes.moves_between(anchors[positive], wanted[which[positive]])
        loss = loss + functional.smooth_l1_loss(moves[positive], aims, reduction="sum") / 256
        with torch.no_grad():
            order = scores.sort(descending=True, stable=True).indices[: self.sizes.proposals]
            proposals = boxes.moved(anchors[order], moves[order].clamp(-1, 1))
            kept = boxes.suppressed(proposals, 0.6, self.sizes.kept)
            regions = torch.cat((proposals[kept], wanted))
            best, which = boxes.overlap(regions, wanted).max(1)
            labels = torch.where(best > 0.5, classes[which], 0)
        logits = self.model.classify(features, regions)
        return loss + functional.cross_entropy(logits, labels)

    def round(self) -> Iterator[Tensor]:
        for height, width, counts in self.shapes:
            with self.mixed_precision():
                levels = self.model.levels(resnet.images(len(counts), height, width, self.device))
                scores, moves, anchors = self.model.propose(levels)
                losses = [
                    self.image_loss(
                        levels[0][item], scores[item], moves[item], anchors, count, (height, width)
                    )
                    for item, count in enumerate(counts)
                ]
                loss = torch.stack(losses).mean()
            del levels, scores, moves, anchors, losses
            yield learn(self.optimizer, loss)


def build(size: str, device: torch.device) -> Program:
    return Detection(SIZES[size], device)
