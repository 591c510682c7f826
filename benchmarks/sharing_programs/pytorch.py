"""The programs of plain.py in PyTorch.

    python pytorch.py memory|train|add --bytes N ...

memory: each step goes over all of its memory. train: a model with AdamW. add: z = x + y.
"""

import os
from argparse import Namespace

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from steps import Work, parse, play

MULTIPLY, ADD = 1664525, 1013904223


class Memory:
    def __init__(self, options: Namespace) -> None:
        self.options = options

    def begin(self) -> None:
        words = self.options.bytes // self.options.blocks // 4
        numbers = range(1, self.options.blocks + 1)
        self.blocks = [
            torch.full((words,), number, dtype=torch.int32, device="cuda") for number in numbers
        ]
        self.written = round(self.options.writes * len(self.blocks))
        # What a read leaves, so that no step allocates.
        self.seen = torch.zeros(len(self.blocks), dtype=torch.int32, device="cuda")
        for number, block in enumerate(self.blocks):
            torch.amax(block, dim=0, out=self.seen[number])
        torch.cuda.synchronize()

    def step(self, number: int) -> None:
        for block in self.blocks[: self.written]:
            block.mul_(MULTIPLY).add_(ADD)
        for at in range(self.written, len(self.blocks)):
            torch.amax(self.blocks[at], dim=0, out=self.seen[at])
        torch.cuda.synchronize()

    def result(self, steps: int) -> dict[str, object]:
        wrong = 0
        for number, block in enumerate(self.blocks):
            value = number + 1
            if number < self.written:
                for _ in range(steps):
                    value = (value * MULTIPLY + ADD) % 2**32
            value -= 2**32 if value >= 2**31 else 0
            least, most = (int(each) for each in torch.aminmax(block))
            wrong += not least == most == value
        return {"wrong": wrong}


class Train:
    """Residual blocks of linear layers; losses are the same bits in every run."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.losses: list[torch.Tensor] = []

    def begin(self) -> None:
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(1)
        width = 1024
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.LayerNorm(width),
                torch.nn.Linear(width, 4 * width),
                torch.nn.GELU(),
                torch.nn.Linear(4 * width, width),
            )
            for _ in range(8)
        ).to("cuda")
        self.optimizer = torch.optim.AdamW(self.layers.parameters(), lr=1e-4)
        self.data = torch.randn(1024, width, device="cuda")
        for _ in range(3):
            self.train()
        torch.cuda.synchronize()

    def train(self) -> torch.Tensor:
        hidden = self.data
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        loss = (hidden - 1).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self, number: int) -> None:
        for _ in range(self.options.batch):
            loss = self.train()
        self.losses.append(loss)
        torch.cuda.synchronize()

    def result(self, steps: int) -> dict[str, object]:
        return {"wrong": 0, "result": [float(loss).hex() for loss in self.losses]}


class Add:
    def __init__(self, options: Namespace) -> None:
        self.options = options

    def begin(self) -> None:
        count = self.options.bytes // 3 // 4
        self.x = torch.ones(count, device="cuda")
        self.y = torch.full((count,), 2.0, device="cuda")
        self.z = torch.zeros(count, device="cuda")
        torch.cuda.synchronize()

    def step(self, number: int) -> None:
        for _ in range(self.options.batch):
            torch.add(self.x, self.y, out=self.z)
        torch.cuda.synchronize()

    def result(self, steps: int) -> dict[str, object]:
        least, most = (float(each) for each in torch.aminmax(self.z))
        return {"wrong": int(not least == most == (3.0 if steps else 0.0))}


WORKS: dict[str, type[Work]] = {"memory": Memory, "train": Train, "add": Add}

if __name__ == "__main__":
    chosen = parse(tuple(WORKS))
    play(WORKS[chosen.kind](chosen), chosen)
