"""Programs on a real card, each function in a process of its own, natively and under the gate.

Each prints one JSON object: `result`, the same in every run, and `held`, what the framework says
that it took from the driver at most, or null.
"""

import json
import os


def _print(result: object, held: int | None = None) -> None:
    print(json.dumps({"result": result, "held": held}))


def _train(steps: int = 20) -> list[str]:
    import torch

    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
    ).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(steps):
        data = torch.randn(64 * (step % 5 + 1), 512, generator=torch.Generator().manual_seed(step))
        loss = (model(data.to("cuda")) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss).hex())
    return losses


def torch_plain() -> None:
    import torch

    losses = _train()
    block = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
    del block
    torch.cuda.empty_cache()
    _print(losses, torch.cuda.max_memory_reserved())


def torch_expandable_segments() -> None:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch

    losses = _train()
    _print(losses, torch.cuda.max_memory_reserved())


def torch_graphs() -> None:
    import torch

    torch.manual_seed(1)
    weight = torch.randn(256, 256, device="cuda") / 16
    data = torch.randn(64, 256, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.relu(data @ weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.relu(data @ weight)
    for step in range(10):
        data.fill_(step)
        graph.replay()
    _print([float(value).hex() for value in out.sum(0)[:8]], torch.cuda.max_memory_reserved())


def cupy_default_pool() -> None:
    import cupy

    total = cupy.arange(1 << 20, dtype=cupy.float64).reshape(1024, 1024)
    for _ in range(5):
        total = (total + total.T) * 0.5
    _print(int(total.sum()), cupy.get_default_memory_pool().total_bytes())


def cupy_async_pool() -> None:
    import cupy

    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    total = cupy.arange(1 << 20, dtype=cupy.float64)
    for _ in range(5):
        total = total[::-1] + total
    _print(int(total.sum()))


def jax_matrices() -> None:
    # XLA chooses among matrix products by timing them, and results then differ from run to run.
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    matrix = jax.random.normal(jax.random.key(1), (512, 512))
    step = jax.jit(lambda each: jax.numpy.tanh(each @ each.T / 512))
    for _ in range(5):
        matrix = step(matrix)
    _print(float(matrix.sum()).hex())


def vramkit_pool() -> None:
    import vramkit

    device = vramkit.driver.open("cuda").device()
    with device.stream() as stream, vramkit.Pool(device=device) as pool:
        for size in (1 << 10, 1 << 20, 64 << 20):
            with pool.allocate(size, stream=stream) as block:
                device.kernels.fill(block.address, size // 4, 7, stream=stream)
        stream.synchronize()
        _print("done", pool.stats().peak_reserved)
