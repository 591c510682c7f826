"""Real frameworks on a real card, each function in a process of its own."""

import gc
import time
import warnings


def torch_uses_the_pool() -> None:
    import torch

    from vramkit.integrations import torch as integration

    pool = integration.install()
    block = torch.full((1 << 20,), 3.0, device="cuda")
    assert pool.stats().current_usage >= 4 << 20
    assert float(block.sum()) == 3.0 * (1 << 20)
    del block
    assert integration.install() is pool


def torch_tells_a_late_install() -> None:
    import torch

    from vramkit.integrations import torch as integration

    torch.zeros(1, device="cuda")
    try:
        integration.install()
    except RuntimeError as error:
        assert "before the first CUDA tensor" in str(error), error
        return
    raise AssertionError("PyTorch has used CUDA already")


def torch_tells_a_lack_of_memory_and_goes_on() -> None:
    import torch

    from vramkit.integrations import torch as integration

    integration.install()
    try:
        torch.empty(1 << 39, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert str(error).startswith("CUDA out of memory. "), error
        assert f"asked for {1 << 39} bytes" in str(error), error
    else:
        raise AssertionError("no card has that much")
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    assert float(torch.ones(1000, device="cuda").sum()) == 1000


def torch_small_blocks_run_into_the_limit() -> None:
    import torch

    from vramkit import Pool
    from vramkit.integrations import torch as integration

    pool = integration.install(Pool(limit=256 << 20))
    for size in (1 << 20, 64 << 10, 3 << 20):
        blocks = []
        try:
            while True:
                blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            assert f"asked for {size} bytes" in str(error), error
        assert torch.cuda.memory_allocated() == len(blocks) * size >= 128 << 20
        blocks.clear()
        assert pool.stats().current_usage == 0


def torch_lack_of_memory_in_backward_allows_a_smaller_batch() -> None:
    import torch

    from vramkit import Pool
    from vramkit.integrations import torch as integration

    pool = integration.install(Pool(limit=512 << 20))
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()

    def in_use() -> int:
        """Parameters: without gradients, garbage and what PyTorch keeps for cuBLAS."""
        model.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        return torch.cuda.memory_allocated()

    parameters = 8 * (1024 * 1024 + 1024) * 4
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    assert in_use() == parameters
    batch, refused = 1 << 20, 0
    while True:
        try:
            data = torch.ones(batch, 1024, device="cuda")
            model(data).sum().backward()
            break
        except torch.OutOfMemoryError:
            refused += 1
        data = None
        latest = time.monotonic() + 10  # autograd's threads drop the failed pass later
        while in_use() != parameters:
            assert time.monotonic() < latest, (batch, pool.stats())
        batch //= 2
    assert refused > 0
    assert torch.cuda.memory_stats()["num_ooms"] >= refused


def torch_lack_of_memory_on_the_thread_of_autograd() -> None:
    import torch

    from vramkit.integrations import torch as integration

    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(_: object, data: torch.Tensor) -> torch.Tensor:
            return data * 2

        @staticmethod
        def backward(_: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * torch.empty(1 << 39, dtype=torch.uint8, device="cuda")[0]

    integration.install()
    data = torch.ones(1000, device="cuda", requires_grad=True)
    try:
        Greedy.apply(data).sum().backward()
    except torch.OutOfMemoryError as error:
        assert f"asked for {1 << 39} bytes" in str(error), error
    else:
        raise AssertionError("no card has that much")
    (data * 3).sum().backward()
    assert data.grad is not None
    assert float(data.grad.sum()) == 3000


def torch_statistics_are_those_of_the_pool() -> None:
    import torch
    from torch.cuda import _memory_viz, max_memory_allocated, memory_allocated  # before install()

    from vramkit.integrations import torch as integration

    assert memory_allocated() == 0
    pool = integration.install()
    kept = torch.ones(1 << 20, device="cuda")
    assert memory_allocated() == torch.cuda.memory_allocated(0) == 4 << 20
    freed = torch.ones(8 << 20, device="cuda")
    del freed
    assert memory_allocated() == 4 << 20
    assert max_memory_allocated() == 36 << 20
    assert torch.cuda.memory_reserved("cuda:0") == pool.stats().reserved
    torch.cuda.reset_peak_memory_stats()
    assert max_memory_allocated() == 4 << 20
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == 36 << 20
    assert stats["allocated_bytes.all.freed"] == 32 << 20
    assert stats["allocation.all.current"] == 1
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocated_bytes.all.freed"] == 0
    assert "4096 KiB" in torch.cuda.memory_summary()
    assert torch.accelerator.memory_allocated() == 4 << 20
    taken = torch.cuda.memory._snapshot()
    assert "total_allocated: 4.0MiB" in _memory_viz.segsum(taken)
    addresses = {
        block["address"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    assert addresses == {kept.data_ptr()}
    for call in (
        lambda: torch.cuda.memory_allocated(99),
        lambda: torch.cuda.memory._record_memory_history(),
    ):
        try:
            call()
        except RuntimeError:
            continue
        raise AssertionError("no error")


def torch_fraction_limits_the_pool() -> None:
    import torch

    from vramkit.integrations import torch as integration

    pool = integration.install()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1 / 64)
    assert pool.config.limit == total // 64
    try:
        torch.empty(total // 32, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("twice the limit")
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert pool.config.limit is None
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    assert torch.empty(total // 32, dtype=torch.uint8, device="cuda").numel() == total // 32


def torch_compile_for_less_overhead_goes_without_graphs() -> None:
    warned, replayed = _compile_for_less_overhead(trees=True)
    assert any("without CUDA graphs" in each for each in warned), warned
    assert replayed == 0


def torch_compile_for_less_overhead_with_single_graphs() -> None:
    warned, replayed = _compile_for_less_overhead(trees=False)
    assert not any("without CUDA graphs" in each for each in warned), warned
    assert replayed > 0


def _compile_for_less_overhead(*, trees: bool) -> tuple[list[str], int]:
    """Trains; the warnings and the number of graphs replayed. Results must be those without."""
    import torch
    import torch._inductor.config

    from vramkit.integrations import torch as integration

    torch._inductor.config.triton.cudagraph_trees = trees
    integration.install()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = model.cuda()

    def steps(called: torch.nn.Module) -> list[torch.Tensor]:
        results = []
        for step in range(6):
            model.zero_grad(set_to_none=True)
            loss = called(torch.full((32, 64), step / 10, device="cuda")).pow(2).mean()
            loss.backward()
            results += [loss.detach().clone(), model[0].weight.grad.clone()]
        return results

    replayed = []
    replay = torch.cuda.CUDAGraph.replay
    torch.cuda.CUDAGraph.replay = lambda graph: (replayed.append(graph), replay(graph))[1]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        compiled = torch.compile(model, mode="reduce-overhead")
    for result, wanted in zip(steps(compiled), steps(model), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-3, atol=1e-5)
    return [str(each.message) for each in warned], len(replayed)


def torch_graph_keeps_its_memory() -> None:
    import torch

    from vramkit.integrations import torch as integration

    integration.install()
    source = torch.ones(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (source * 2 + 1) * 3
    for value in (1.0, 5.0):
        source.fill_(value)
        held = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(8)]
        graph.replay()
        assert float(result.mean()) == (value * 2 + 1) * 3
        assert all(bool((block == 7.0).all()) for block in held)


def torch_mem_pool_serves_and_ends() -> None:
    import torch

    from vramkit import Pool
    from vramkit.integrations import torch as integration

    before = torch.zeros(1000, device="cuda")
    mem_pool = integration.mem_pool()
    with torch.cuda.use_mem_pool(mem_pool):
        block = torch.full((8 << 20,), 2.0, device="cuda")
    pool = Pool.instance()
    assert pool.stats().current_usage >= 32 << 20
    assert float(block.sum()) + float(before.sum()) == 2.0 * (8 << 20)
    del block, mem_pool
    gc.collect()
    torch.cuda.empty_cache()
    assert pool.stats().current_usage == 0


def cupy_uses_the_pool_and_lets_go() -> None:
    import cupy

    from vramkit.integrations import cupy as integration

    own = cupy.cuda.get_allocator()
    pool = integration.install()
    with cupy.cuda.Stream(non_blocking=True):
        block = cupy.arange(1 << 20, dtype=cupy.float32)
        assert pool.stats().current_usage >= 4 << 20
        assert float(block[-1]) == (1 << 20) - 1
    integration.uninstall()
    assert cupy.cuda.get_allocator() == own
    del block
    assert pool.stats().current_usage == 0


def cupy_tells_a_lack_of_memory_and_goes_on() -> None:
    import cupy

    from vramkit.integrations import cupy as integration

    integration.install()
    try:
        cupy.empty(1 << 39, dtype=cupy.uint8)
    except cupy.cuda.memory.OutOfMemoryError as error:
        assert str(1 << 39) in str(error), error
    else:
        raise AssertionError("no card has that much")
    assert int(cupy.ones(1000).sum()) == 1000


def rmm_uses_the_pool() -> None:
    import rmm

    from vramkit.integrations import rmm as integration

    pool = integration.install()
    buffer = rmm.DeviceBuffer.to_device(b"abc" * 1000)
    assert pool.stats().current_usage == 3000
    assert buffer.copy().tobytes() == b"abc" * 1000
    del buffer
    assert pool.stats().current_usage == 0


def rmm_tells_a_lack_of_memory() -> None:
    import rmm

    from vramkit.integrations import rmm as integration

    integration.install()
    try:
        rmm.DeviceBuffer(size=1 << 39)
    except MemoryError:
        return
    raise AssertionError("no card has that much")
