"""Real frameworks on a real card, each function in a process of its own."""

import gc


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
    except RuntimeError as error:
        assert "out of memory" in str(error), error
    else:
        raise AssertionError("no card has that much")
    assert float(torch.ones(1000, device="cuda").sum()) == 1000


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
