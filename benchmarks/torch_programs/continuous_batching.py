"""Serves requests that come and go: each has caches of its own, which grow by `torch.cat`."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torch_programs import llama
from torch_programs.llama import Llama, LlamaSizes, rotations
from torch_programs.program import Program


@dataclass(frozen=True)
class Sizes:
    llama: LlamaSizes
    requests: int
    active: int
    prompts: tuple[int, int]
    answers: tuple[int, int]


SIZES = {
    "full": Sizes(LlamaSizes(6, 2048, 5632, 16, 16, 32_000), 36, 32, (64, 4000), (8, 40)),
    "tiny": Sizes(LlamaSizes(2, 32, 64, 4, 2, 100), 5, 3, (3, 9), (2, 4)),
}


@dataclass
class Request:
    prompt: int
    answer: int
    """Tokens that are still to be generated."""
    token: Tensor
    caches: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.caches[0][0].shape[2]


class Server:
    """One pass over the layers, for a prompt or for one token of every active request."""

    def __init__(self, model: Llama) -> None:
        self.model = model

    def prefill(self, request: Request, prompt: Tensor) -> None:
        turn = rotations(prompt.shape[1], self.model.sizes.head, 0, prompt.device)
        x = self.model.embedding(prompt)
        for layer in self.model.layers:
            queries, keys, values = layer.attention.project(layer.before_attention(x), turn)
            request.caches.append((keys, values))
            mixed = layer.attention.attend(queries, keys, values, causal=True)
            x = x + layer.attention.output(mixed)
            x = x + layer.network(layer.before_network(x))
        request.token = self.choose(x[:, -1:])

    def decode(self, requests: list[Request]) -> None:
        tokens = torch.cat([request.token for request in requests])
        x = self.model.embedding(tokens)
        turns = [
            rotations(1, self.model.sizes.head, request.length, tokens.device)
            for request in requests
        ]
        turn = tuple(torch.stack(parts)[:, None] for parts in zip(*turns, strict=True))
        for index, layer in enumerate(self.model.layers):
            queries, keys, values = layer.attention.project(layer.before_attention(x), turn)
            mixed = []
            for place, request in enumerate(requests):
                here = slice(place, place + 1)
                old_keys, old_values = request.caches[index]
                cache = (
                    torch.cat((old_keys, keys[here]), 2),
                    torch.cat((old_values, values[here]), 2),
                )
                request.caches[index] = cache
                mixed.append(layer.attention.attend(queries[here], *cache, causal=False))
            x = x + layer.attention.output(torch.cat(mixed))
            x = x + layer.network(layer.before_network(x))
        for request, token in zip(requests, self.choose(x).split(1), strict=True):
            request.token = token
            request.answer -= 1

    def choose(self, x: Tensor) -> Tensor:
        return self.model.head(self.model.last(x)).argmax(-1)


class ContinuousBatching(Program):
    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(device)
        self.sizes = sizes
        self.model = llama.made(sizes.llama, device).eval()
        self.models = [self.model]
        self.lengths = [
            (self.random.randint(*sizes.prompts), self.random.randint(*sizes.answers))
            for _ in range(sizes.requests)
        ]

    @torch.no_grad()
    def step(self, active: list[Request], waiting: list[tuple[int, int]]) -> Tensor:
        """One request is let in, if there is room, and every active one gets a token."""
        server = Server(self.model)
        if waiting and len(active) < self.sizes.active:
            prompt, answer = waiting.pop(0)
            tokens = self.integers(self.sizes.llama.vocabulary, 1, prompt)
            active.append(Request(prompt, answer, tokens))
            server.prefill(active[-1], tokens)
        server.decode(active)
        figure = torch.cat([request.token for request in active]).sum()
        active[:] = [request for request in active if request.answer > 0]
        return figure.double()

    def round(self) -> Iterator[Tensor]:
        active: list[Request] = []
        waiting = list(self.lengths)
        while active or waiting:
            yield self.step(active, waiting)


def build(size: str, device: torch.device) -> Program:
    return ContinuousBatching(SIZES[size], device)
