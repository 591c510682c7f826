"""Loops that allocate and release one block from Python: vramkit, RMM, CuPy, torch."""

import gc
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from rows import Row

from vramkit.lab.subjects.rmm import Kind, memory_resource

Loop = Callable[[int], None]
Loops = Iterator[tuple[str, str, Loop]]
"""Workload, allocator, and what makes that many pairs."""

RAW, OBJECT = "python/raw", "python/object"
BYTES = 4096
REPETITIONS = 7
SECONDS = 0.1
"""Of one repetition: a count would give a slow allocator all the time and a fast one too little."""


def measure(row: Row, loop: Loop) -> None:
    """Nanoseconds of one pair. The first loops warm up and find how many make a repetition."""
    pairs, seconds = 500, 0.0
    while seconds < SECONDS / 4:
        pairs *= 2
        seconds = _seconds(loop, pairs)
    pairs = max(1, int(pairs * SECONDS / seconds))
    row.take([_seconds(loop, pairs) / pairs * 1e9 for _ in range(REPETITIONS)])
    row.details = {"bytes": BYTES, "pairs": pairs}


def _seconds(loop: Loop, pairs: int) -> float:
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    loop(pairs)
    seconds = time.perf_counter() - start
    gc.enable()
    return seconds


def empty_loops() -> Loops:
    """What the loop and two Python calls cost by themselves."""

    def take(size: int, stream: None) -> int:
        return size

    def give(address: int) -> None:
        pass

    def loop(pairs: int) -> None:
        for _ in range(pairs):
            give(take(BYTES, stream=None))

    yield RAW, "empty_call", loop


def vramkit_loops() -> Loops:
    driver = import_module("vramkit.driver")
    device = driver.open().device(0)
    stream = device.stream()
    other = device.stream()

    class Foreign:
        """A stream of somebody else's: with each call it is asked for its handle, in Python."""

        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, other.handle)

    pool = import_module("vramkit.pool").Pool(device=device)

    def raw(stream: object) -> Loop:
        def loop(pairs: int) -> None:
            malloc, free = pool.malloc, pool.free
            for _ in range(pairs):
                free(malloc(BYTES, stream=stream))

        return loop

    def buffer(pairs: int) -> None:
        allocate = pool.allocate
        for _ in range(pairs):
            allocate(BYTES, stream=stream)

    yield RAW, "vramkit", raw(stream)
    yield RAW, "vramkit_raw", raw(driver.Stream.from_handle(device, other.handle))
    yield RAW, "vramkit_foreign", raw(Foreign())
    yield OBJECT, "vramkit", buffer


def rmm_loops() -> Loops:
    rmm = import_module("rmm")
    stream = import_module("rmm.pylibrmm.stream").Stream()

    def half() -> int:
        free: int = rmm.mr.available_device_memory()[0]
        return free // 2 // 256 * 256

    def raw(resource: Any) -> Loop:
        def loop(pairs: int) -> None:
            allocate, deallocate = resource.allocate, resource.deallocate
            for _ in range(pairs):
                deallocate(allocate(BYTES, stream), BYTES, stream)

        return loop

    def buffer(resource: Any) -> Loop:
        def loop(pairs: int) -> None:
            make_buffer = rmm.DeviceBuffer
            for _ in range(pairs):
                make_buffer(size=BYTES, stream=stream, mr=resource)

        return loop

    kinds: tuple[Kind, ...] = ("arena", "async", "pool")
    for kind in kinds:
        resource = memory_resource(kind, rmm.mr.CudaMemoryResource(), half())
        yield RAW, f"rmm_{kind}", raw(resource)
        yield OBJECT, f"rmm_{kind}", buffer(resource)


def cupy_loops() -> Loops:
    cupy = import_module("cupy")
    cupy.zeros(1)

    def default(pairs: int) -> None:
        alloc = cupy.cuda.alloc
        for _ in range(pairs):
            alloc(BYTES)

    yield OBJECT, "cupy_pool", default
    asynchronous = cupy.cuda.MemoryAsyncPool()

    def stream_ordered(pairs: int) -> None:
        malloc = asynchronous.malloc
        for _ in range(pairs):
            malloc(BYTES)

    yield OBJECT, "cupy_async", stream_ordered


def torch_loops() -> Loops:
    torch = import_module("torch")
    torch.zeros(1, device="cuda")
    device = torch.device("cuda", 0)

    def empty(pairs: int) -> None:
        make, kind = torch.empty, torch.uint8
        for _ in range(pairs):
            make(BYTES, dtype=kind, device=device)

    def raw(pairs: int) -> None:
        alloc = torch.cuda.caching_allocator_alloc
        delete = torch.cuda.caching_allocator_delete
        for _ in range(pairs):
            delete(alloc(BYTES))

    yield OBJECT, "torch", empty
    yield RAW, "torch", raw
