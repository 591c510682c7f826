"""Trains a network over graphs: messages along the edges, summed where they arrive."""

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
    edge_width: int
    classes: int
    steps: int
    nodes: tuple[int, int]
    edges: tuple[int, int]


SIZES = {
    "full": Sizes(3, 128, 16, 40, 8, (20_000, 60_000), (100_000, 800_000)),
    "tiny": Sizes(2, 8, 4, 5, 3, (5, 20), (20, 60)),
}


class Passing(nn.Module):
    """One exchange of messages, around a shortcut."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.message = nn.Sequential(
            nn.Linear(2 * width + sizes.edge_width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.update = nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, width), nn.SiLU())

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor, edges: Tensor) -> Tensor:
        messages = self.message(torch.cat((nodes[source], nodes[target], edges), 1))
        arrived = torch.zeros_like(nodes).index_add(0, target, messages)
        result: Tensor = nodes + self.update(torch.cat((nodes, arrived), 1))
        return result


class GraphModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Passing(sizes) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.width, sizes.classes)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            nodes = layer(nodes, source, target, edges)
        result: Tensor = self.head(nodes)
        return result


class GraphNetwork(Program):
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(device)
        self.sizes = sizes
        with device:
            self.model = GraphModel(sizes)
        self.models = [self.model]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.shapes = [
            (self.random.randint(*sizes.nodes), self.random.randint(*sizes.edges))
            for _ in range(sizes.steps)
        ]
        self.shapes[sizes.steps // 2] = (sizes.nodes[1], sizes.edges[1])

    def round(self) -> Iterator[Tensor]:
        for nodes, edges in self.shapes:
            logits = self.model(
                self.normal(nodes, self.sizes.width),
                self.integers(nodes, edges),
                self.integers(nodes, edges),
                self.normal(edges, self.sizes.edge_width),
            )
            wanted = self.integers(self.sizes.classes, nodes)
            yield learn(self.optimizer, functional.cross_entropy(logits, wanted))


def build(size: str, device: torch.device) -> Program:
    return GraphNetwork(SIZES[size], device)
