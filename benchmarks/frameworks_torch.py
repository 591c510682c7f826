"""PyTorch trains a small transformer encoder in several ways."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from frameworks_work import CardMemory, Part, Results, pool_details, timed_rounds
from torch import nn
from torch.nn import functional

STEPS = 60
BATCHES = (32, 8, 48, 16, 64, 24, 4, 40)
GRAPH_BATCH = 32
LENGTH = 128
WIDTH = 512
HEADS = 8
LAYERS = 4
DROPOUT = 0.1
WARM_STEPS = 3

# A mode of this name is "plain" with an allocator that may have so many MiB.
WITHIN = "within_"

Step = Callable[[int], torch.Tensor]


class Layer(nn.Module):
    """Attention and a small network, each around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.after_attention = nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.Dropout(DROPOUT),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        projected = self.queries_keys_values(self.before_attention(x))
        parts = projected.view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.after_attention(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        result: torch.Tensor = x + self.network(x)
        return result


class Training:
    """The model, its optimiser, and where the inputs come from. The same bits in every process."""

    def __init__(self, *, capturable: bool) -> None:
        torch.manual_seed(7)
        self.weights = nn.Sequential(*(Layer() for _ in range(LAYERS))).to("cuda")
        self.model: Callable[[torch.Tensor], torch.Tensor] = self.weights
        self.optimizer = torch.optim.AdamW(
            self.weights.parameters(), lr=1e-4, capturable=capturable
        )
        self.generator = torch.Generator("cuda").manual_seed(11)

    def inputs(self, batch: int) -> torch.Tensor:
        return torch.randn(batch, LENGTH, WIDTH, device="cuda", generator=self.generator)

    def learn(self, inputs: torch.Tensor) -> torch.Tensor:
        """One step: to give each position what stood before it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(self.model(inputs), inputs.roll(1, 1))
        loss.backward()
        self.optimizer.step()
        return loss.detach().clone()  # a view would keep its graph, and that an input


def plain(training: Training) -> Step:
    return lambda batch: training.learn(training.inputs(batch))


def compiled(training: Training) -> Step:
    """By inductor, one compilation for all batch sizes."""
    training.model = torch.compile(training.weights, dynamic=True)
    return plain(training)


def on_two_streams(training: Training) -> Step:
    """Inputs are made on a stream of their own, ahead of the work, and freed while it runs."""
    side = torch.cuda.Stream()

    def step(batch: int) -> torch.Tensor:
        with torch.cuda.stream(side):
            inputs = training.inputs(batch)
        main = torch.cuda.current_stream()
        main.wait_stream(side)
        inputs.record_stream(main)
        return training.learn(inputs)

    return step


def as_graph(training: Training) -> Step:
    """The step is captured once and replayed.

    Blocks are allocated before each replay and looked at after it: memory of the graph that was
    handed out a second time shows in their contents.
    """
    inputs = training.inputs(GRAPH_BATCH)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_STEPS):
            training.learn(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training.learn(inputs)

    def step(batch: int) -> torch.Tensor:
        inputs.copy_(training.inputs(GRAPH_BATCH))
        sizes = (batch * LENGTH * WIDTH, GRAPH_BATCH * LENGTH * WIDTH, WIDTH * WIDTH, batch)
        held = [torch.full((size,), 7.0, device="cuda") for size in sizes]
        graph.replay()
        spoiled = torch.stack([block.ne(7.0).sum() for block in held]).sum()
        return loss + 1e6 * spoiled

    return step


def forward_in_a_pool(training: Training, context: Callable[[], Any]) -> Step:
    """Without gradients: torch sends only the allocations of this thread to its pool."""

    @torch.no_grad()
    def step(batch: int) -> torch.Tensor:
        with context():
            inputs = training.inputs(batch)
            return functional.mse_loss(training.model(inputs), inputs)

    return step


def deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    # Else every fresh tensor is filled first, and the time of that would be ours.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def make_step(mode: str, training: Training, mem_pool: Any) -> Step:
    if mode == "mem_pool":
        return forward_in_a_pool(training, lambda: torch.cuda.use_mem_pool(mem_pool))
    makers = {
        "plain": plain,
        "streams": on_two_streams,
        "graph": as_graph,
        "compile": compiled,
    }
    return makers["plain" if mode.startswith(WITHIN) else mode](training)


def torch_details() -> dict[str, float]:
    """Of its own allocator: what tensors had at most, and how often it had to give memory back."""
    return {
        "torch_peak_allocated": float(torch.cuda.max_memory_allocated()),
        "torch_retries": float(torch.cuda.memory_stats().get("num_alloc_retries", 0)),
    }


def run(mode: str, allocator: str, repetitions: int) -> Part:
    pool, mem_pool = None, None
    limit = int(mode.removeprefix(WITHIN)) << 20 if mode.startswith(WITHIN) else None
    if allocator == "vramkit":
        from vramkit import Pool
        from vramkit.integrations import torch as integration

        chosen = Pool.instance() if limit is None else Pool(limit=limit)
        pool = chosen if mode == "mem_pool" else integration.install(chosen)
    elif limit is not None:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
    deterministic()
    torch.cuda.synchronize()  # makes the context
    card = CardMemory(torch.cuda.mem_get_info)
    if mode == "mem_pool":
        mem_pool = torch.cuda.MemPool() if pool is None else integration.mem_pool(pool)
    training = Training(capturable=mode == "graph")
    step = make_step(mode, training, mem_pool)
    losses: list[torch.Tensor] = []
    look: Callable[[], None] | None = card.look

    def work() -> None:
        for batch in itertools.islice(itertools.cycle(BATCHES), STEPS):
            losses.append(step(batch))
            if look is not None:
                look()

    first = timed_rounds(work, torch.cuda.synchronize, 1)
    look = None
    milliseconds = timed_rounds(work, torch.cuda.synchronize, repetitions)
    card.look()

    results = Results()
    results.add(torch.stack(losses).tolist())
    for parameter in training.weights.parameters():
        results.add_bytes(parameter.detach().cpu().numpy().tobytes())
    # torch counts where its own allocator is in charge, as it is in front of a MemPool.
    own = pool is None or mode == "mem_pool"
    return Part(
        milliseconds=milliseconds,
        peak_bytes=torch.cuda.max_memory_reserved() if own else pool.stats().peak_reserved,
        card_bytes=card.most,
        digest=results.digest,
        figures=results.figures,
        details={
            "first_round_ms": first[0],
            "steps": float(STEPS),
            **pool_details(pool),
            **({} if pool else torch_details()),
        },
    )
