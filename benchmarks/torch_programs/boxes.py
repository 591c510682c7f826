"""Boxes as (left, top, right, bottom): overlap, matching, suppression, in plain PyTorch."""

import torch
from torch import Tensor


def overlap(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of every box with every other: (boxes, boxes)."""
    near = torch.maximum(first[:, None, :2], second[None, :, :2])
    far = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = (far - near).clamp(min=0).prod(-1)
    return shared / (areas(first)[:, None] + areas(second)[None, :] - shared).clamp(min=1e-6)


def areas(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(-1)


def suppressed(boxes: Tensor, limit: float, kept: int) -> Tensor:
    """Indices of boxes, sorted by score before, that no better one overlaps by more."""
    worst = overlap(boxes, boxes).triu(1).max(0).values
    return (worst <= limit).nonzero().flatten()[:kept]


def anchors(height: int, width: int, stride: int, sides: tuple[float, ...], like: Tensor) -> Tensor:
    """Boxes of the given sides, in strides, around every place of a grid."""
    down = (torch.arange(height, device=like.device) + 0.5) * stride
    across = (torch.arange(width, device=like.device) + 0.5) * stride
    centres = torch.stack(
        (across.expand(height, width), down[:, None].expand(height, width)), -1
    ).view(-1, 1, 2)
    halves = torch.tensor(sides, device=like.device).view(1, -1, 1) * stride / 2
    return torch.cat((centres - halves, centres + halves), -1).view(-1, 4)


def moved(boxes: Tensor, moves: Tensor) -> Tensor:
    """Each box with its corners moved by so many of its sides."""
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    return boxes + sides * moves


def moves_between(boxes: Tensor, wanted: Tensor) -> Tensor:
    return (wanted - boxes) / (boxes[:, 2:] - boxes[:, :2]).clamp(min=1).repeat(1, 2)
