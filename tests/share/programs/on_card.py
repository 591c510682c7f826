"""Programs that know nothing of sharing, each function in a process of its own.

Each repeats a round of work that must give the same again and again, beside a block of memory that
every round changes, and prints one JSON object: `result`, the same in every run, and `rounds`. The
environment says how much: STEPS of a round; BALLAST, the bytes of the block. With UNTIL, the name
of a file, it makes rounds until that file exists, else two.
"""

import ctypes
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

STEPS = int(os.environ.get("STEPS", "4"))
BALLAST = int(os.environ.get("BALLAST", str(8 << 20)))
UNTIL = os.environ.get("UNTIL")
PIECE = 1 << 24  # words, so that a check takes little memory


def _play(work, touch, wrong) -> None:
    first = work()
    touch()
    rounds = 1
    while rounds < 2 or (UNTIL and not os.path.exists(UNTIL)):
        again = work()
        touch()
        rounds += 1
        if again != first:
            sys.exit(f"round {rounds} gave {again}, the first one {first}")
    found = wrong(rounds)
    if found:
        sys.exit(f"after {rounds} rounds {found} pieces of the block are wrong")
    print(json.dumps({"result": first, "rounds": rounds}))


# PyTorch


def _with_torch(work) -> None:
    import torch

    block = torch.arange(BALLAST // 4, dtype=torch.int32, device="cuda")

    def wrong(rounds: int) -> int:
        bad = 0
        for at in range(0, len(block), PIECE):
            piece = block[at : at + PIECE]
            right = torch.arange(at, at + len(piece), dtype=torch.int32, device="cuda") + rounds
            bad += not torch.equal(piece, right)
        return bad

    _play(work, lambda: block.add_(1), wrong)


def _train() -> list[str]:
    import torch

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
    ).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(STEPS):
        data = torch.randn(64 * (step % 5 + 1), 512, generator=torch.Generator().manual_seed(step))
        loss = (model(data.to("cuda")) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()).hex())
    return losses


def torch_training() -> None:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    _with_torch(_train)


def torch_expandable_segments() -> None:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    _with_torch(_train)


def torch_graphs() -> None:
    import torch

    torch.manual_seed(1)
    weight = torch.randn(1024, 1024, device="cuda") / 32
    data = torch.randn(256, 1024, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.relu(data @ weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # The graph's memory is allocated meanwhile, and it sets and copies some of it.
    with torch.cuda.graph(graph):
        copy = data.clone()
        out = torch.relu(copy @ weight)
        total = torch.zeros_like(weight).sum() + out.sum()

    def work() -> list[str]:
        for step in range(STEPS):
            data.fill_(step)
            graph.replay()
        return [float(value).hex() for value in (*out.sum(0)[:8], total)]

    _with_torch(work)


def torch_compile() -> None:
    import torch

    torch.manual_seed(1)
    layer = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256))
    compiled = torch.compile(layer.to("cuda"))
    data = torch.randn(128, 256, device="cuda")

    def work() -> list[str]:
        with torch.no_grad():
            hidden = data
            for _ in range(STEPS):
                hidden = compiled(hidden)
            return [float(value).hex() for value in hidden.sum(0)[:8]]

    _with_torch(work)


def transformers_generate() -> None:
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).to("cuda").eval()
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    prompt = torch.arange(3, 19, device="cuda").reshape(2, 8)
    mask = torch.ones_like(prompt)

    def work() -> list[int]:
        made = model.generate(
            prompt, attention_mask=mask, max_new_tokens=2 * STEPS, do_sample=False
        )
        return [int(token) for token in made.flatten()]

    _with_torch(work)


# CuPy


def _with_cupy() -> None:
    import cupy

    block = cupy.arange(BALLAST // 4, dtype=cupy.int32)

    def work() -> int:
        total = cupy.arange(1 << 20, dtype=cupy.float64).reshape(1024, 1024)
        for _ in range(STEPS):
            total = (total + total.T) * 0.5
        return int(total.sum())

    def touch() -> None:
        cupy.add(block, 1, out=block)

    def wrong(rounds: int) -> int:
        bad = 0
        for at in range(0, len(block), PIECE):
            piece = block[at : at + PIECE]
            right = cupy.arange(at, at + len(piece), dtype=cupy.int32) + rounds
            bad += not bool((piece == right).all())
        return bad

    _play(work, touch, wrong)


def cupy_default_pool() -> None:
    _with_cupy()


def cupy_async_pool() -> None:
    import cupy

    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    _with_cupy()


# JAX, which takes a part of the card at its start


def jax_matrices() -> None:
    # XLA chooses among matrix products by timing them, and results then differ from run to run.
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
    import jax

    numpy = jax.numpy
    count = BALLAST // 8
    block = numpy.arange(count, dtype=numpy.int32)
    add = jax.jit(lambda each: each + 1, donate_argnums=0)
    step = jax.jit(lambda each: numpy.tanh(each @ each.T / 512))

    def work() -> str:
        matrix = jax.random.normal(jax.random.key(1), (512, 512))
        for _ in range(STEPS):
            matrix = step(matrix)
        return float(matrix.sum()).hex()

    def touch() -> None:
        nonlocal block
        block = add(block)

    def wrong(rounds: int) -> int:
        bad = 0
        for at in range(0, count, PIECE):
            piece = block[at : at + PIECE]
            bad += not bool((piece == numpy.arange(at, at + len(piece)) + rounds).all())
        return bad

    _play(work, touch, wrong)


# vramkit's own pool


def vramkit_pool() -> None:
    import vramkit

    device = vramkit.driver.open().device()
    words = BALLAST // 4
    with (
        device.stream() as stream,
        vramkit.Pool(device=device) as pool,
        pool.allocate(BALLAST, stream=stream) as block,
        pool.allocate(512, stream=stream) as out,
        device.alloc_pinned(8) as host,
    ):
        kernels = device.kernels
        kernels.fill(block.address, words, 7, stream=stream)

        def checksum(address: int, count: int) -> int:
            kernels.fill(out.address, 2, 0, stream=stream)
            kernels.checksum(address, count, out.address, stream=stream)
            device.copy(host, out.address, 8, stream=stream)
            stream.synchronize()
            return int.from_bytes(host.read(), "little")

        def work() -> list[int]:
            sums = []
            for size in (1 << 10, 1 << 20, 16 << 20)[: STEPS + 1]:
                with pool.allocate(size, stream=stream) as made:
                    kernels.fill(made.address, size // 4, 3, stream=stream)
                    kernels.sweep(made.address, size // 4, STEPS, stream=stream)
                    sums.append(checksum(made.address, size // 4))
            return sums

        def touch() -> None:
            kernels.sweep(block.address, words, 1, stream=stream)

        def wrong(rounds: int) -> int:
            return int(checksum(block.address, words) != _swept(7, rounds) * words)

        _play(work, touch, wrong)


# Without any framework, with the default stream of each thread


def _swept(value: int, rounds: int) -> int:
    for _ in range(rounds):
        value = (value * 1664525 + 1013904223) % 2**32
    return value


def per_thread_streams() -> None:
    """By ctypes, with the names that a program has which is compiled for such streams."""
    cuda = ctypes.CDLL("libcuda.so.1")
    u64 = ctypes.c_uint64

    def call(name: str, *arguments: object) -> None:
        result = getattr(cuda, name)(*arguments)
        if result != 0:
            print(f"{name} returned error {result}", file=sys.stderr, flush=True)
            os._exit(3)

    context, module = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    image = Path(os.environ["KERNELS"]).read_bytes() + b"\0"
    call("cuModuleLoadData", ctypes.byref(module), image)
    functions = {}
    for name in ("vk_fill", "vk_sweep", "vk_checksum"):
        functions[name] = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(functions[name]), module, name.encode())

    def launch(name: str, *values: int) -> None:
        held = [u64(value) for value in values]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(each) for each in held))
        shape = [ctypes.c_uint(each) for each in (64, 1, 1, 256, 1, 1, 0)]
        call("cuLaunchKernel_ptsz", functions[name], *shape, None, pointers, None)

    def allocate(nbytes: int) -> int:
        address = u64()
        call("cuMemAlloc_v2", ctypes.byref(address), u64(nbytes))
        return address.value

    words = BALLAST // 4
    block = allocate(BALLAST)
    threads = 4
    parts = [allocate(1 << 20) for _ in range(threads)]
    outs = [allocate(512) for _ in range(threads)]

    def checksum(address: int, count: int, out: int) -> int:
        value = u64()
        launch("vk_fill", out, 2, 0)
        launch("vk_checksum", address, count, out)
        call("cuMemcpyDtoHAsync_v2_ptsz", ctypes.byref(value), u64(out), u64(8), None)
        call("cuStreamSynchronize_ptsz", None)
        return value.value

    def work() -> list[int]:
        sums = [0] * threads

        def one(number: int) -> None:
            call("cuCtxSetCurrent", context)
            launch("vk_fill", parts[number], 1 << 18, number + 1)
            for _ in range(STEPS):
                launch("vk_sweep", parts[number], 1 << 18, 1)
            sums[number] = checksum(parts[number], 1 << 18, outs[number])

        started = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
        for each in started:
            each.start()
        for each in started:
            each.join()
        return sums

    def touch() -> None:
        launch("vk_sweep", block, words, 1)
        call("cuStreamSynchronize_ptsz", None)

    launch("vk_fill", block, words, 7)
    _play(work, touch, lambda rounds: checksum(block, words, outs[0]) != _swept(7, rounds) * words)


def compiled_per_thread_streams() -> None:
    """per_thread_streams.cu, compiled by nvcc, in this process's place."""
    program = Path("per_thread_streams").absolute()
    source = Path(__file__).with_suffix("").parent / "per_thread_streams.cu"
    command = ["nvcc", "-O1", "-std=c++17", "--default-stream", "per-thread"]
    made = subprocess.run(
        [*command, "-o", str(program), str(source)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        sys.exit(f"nvcc failed: {made.stdout}{made.stderr}")
    os.execv(program, [str(program), str(STEPS), str(BALLAST), UNTIL or ""])
